"""World models: the models in training/world/, and ../rollout.py."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import distributions
from torch.nn import functional as F

from torchrlopt import _C
from torchrlopt.agent.networks.actions import Legal
from training.networks.two_stage_controller import TwoStageController
from training.random_keys import gumbel_of
from training.world.discrete_model import DiscreteModel
from training.world.mixture_model import MixtureModel, mixture_log_prob
from training.world.sequences import Sequences
from training.world.world_model import WorldModel, total

NUM_RULES, WIDTH = 5, 6
KINDS = ("mixture", "discrete")


def make(kind: str, seed: int = 0) -> WorldModel:
    torch.manual_seed(seed)
    rules = torch.randn(NUM_RULES, 4)
    if kind == "mixture":
        return MixtureModel(WIDTH, rules, hidden=16, mixtures=3)
    return DiscreteModel(WIDTH, rules, hidden=16, groups=4, classes=4)


def world(batch: int = 16, steps: int = 6, seed: int = 0) -> Sequences:
    """Episodes of a world with a rule: substitution k adds k tenths to a feature and earns as much."""
    generator = torch.Generator().manual_seed(seed)
    substitution = torch.randint(0, NUM_RULES, (batch, steps), generator=generator)
    rewards = substitution / 10.0
    change = torch.zeros(batch, steps + 1, WIDTH)
    change[:, 0] = torch.randn(batch, WIDTH, generator=generator)
    change[:, 1:, 0] = rewards
    features = change.cumsum(1)
    saved = (substitution / 20.0).square()
    features[..., -2] = 1 - torch.cat([torch.zeros(batch, 1), saved.cumsum(1)], dim=1)
    features[..., -1] = features[..., -2]
    lengths = torch.randint(1, steps + 1, (batch, 1), generator=generator)
    mask = torch.ones(batch, steps + 1, NUM_RULES + 1, dtype=torch.bool)
    mask[..., 1] = features[..., 0] > 0.5
    # Half of what a step earns shows beforehand; the rest has to be learnt.
    savings = torch.arange(NUM_RULES).expand(batch, steps + 1, NUM_RULES) / 20.0 * mask[..., :-1]
    return Sequences(
        features,
        torch.stack([substitution, torch.zeros_like(substitution)], dim=-1),
        rewards,
        torch.arange(steps) == lengths - 1,
        mask,
        mask[..., :-1].long() * 2,
        savings,
        substitution / 20.0,
        torch.arange(steps) < lengths,
    )


def start(model: WorldModel, seen: Sequences) -> object:
    return model.start(seen.features[:, 0], seen.legal((slice(None), 0)))


def test_the_likelihood_of_a_mixture_is_that_of_torch_distributions() -> None:
    torch.manual_seed(0)
    logits, means, log_sigmas, values = (
        torch.randn(shape) for shape in ((7, 3), (7, 3, 5), (7, 3, 5), (7, 5))
    )
    components = distributions.Independent(distributions.Normal(means, log_sigmas.exp()), 1)
    mixture = distributions.MixtureSameFamily(distributions.Categorical(logits=logits), components)
    mine = mixture_log_prob(logits, means, log_sigmas, values)
    torch.testing.assert_close(mine, mixture.log_prob(values))
    far = mixture_log_prob(logits, means, log_sigmas, values + 1e4)
    assert far.isfinite().all(), "no logarithm of a sum of zeros"


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_loss(kind: str) -> None:
    model, seen = make(kind), world()
    assert not seen.valid.all()
    more = seen.padded(9)
    more.features[:, -5:] = 1e3  # nonsense
    more.rewards[:, -5:] = -1e3
    for (name, one), other in zip(model.loss(seen).items(), model.loss(more).values(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_is_a_finite_scalar_and_teaches_every_parameter(kind: str) -> None:
    model = make(kind)
    losses = model.loss(world())
    assert {"reward", "done", "mask", "count", "saving"} < set(losses)
    assert all(loss.shape == () and loss.isfinite() for loss in losses.values())
    total(losses).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.norm() > 0, name


@pytest.mark.parametrize("kind", KINDS)
def test_following_real_episodes_goes_through_the_states_of_the_loss(kind: str) -> None:
    model, seen = make(kind), world()
    generator = torch.Generator()
    state = start(model, seen)
    for t in range(3):
        legal = seen.legal((slice(None), t + 1))
        state = model.follow(
            state, seen.actions[:, t], seen.taken[:, t], seen.features[:, t + 1], legal, generator
        )
        assert torch.equal(state.legal.mask, seen.mask[:, t + 1])
        torch.testing.assert_close(state.z, model.encode(seen.features[:, t + 1]))
    other = seen.actions.clone()
    other[:, 0, 0] = (other[:, 0, 0] + 1) % NUM_RULES
    legal = seen.legal((slice(None), 1))
    changed = model.follow(
        start(model, seen), other[:, 0], seen.taken[:, 0], seen.features[:, 1], legal, generator
    )
    same = model.step(start(model, seen), seen.actions[:, 0], generator)[0]
    assert (changed.hidden - same.hidden).abs().max() > 1e-4, "the action matters"


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_legal_stays_so_until_its_locations_are_used_up(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(kind)
    monkeypatch.setattr(model, "rule_scores", lambda hidden: torch.zeros(1, 3, NUM_RULES))  # nothing is new
    counts = torch.tensor([[0, 1, 1, 3, 7]])
    savings = torch.tensor([[0.0, 0.1, -0.2, 0.3, 0.4]])
    before = Legal(torch.cat([counts > 0, torch.ones(1, 1, dtype=torch.bool)], 1), counts, savings)
    state = dataclasses.replace(start(model, world(1)), legal=before)

    def after(substitution: int) -> Legal:
        return model.step(state, torch.tensor([[substitution, 0]]), torch.Generator())[0].legal

    used = after(2)
    assert used.mask.tolist() == [[False, True, False, True, True, True]]
    assert used.num_locations.tolist() == [[0, 1, 0, 3, 7]]
    torch.testing.assert_close(used.savings, savings)
    assert after(3).num_locations.tolist() == [[0, 1, 1, 2, 7]]
    assert after(NUM_RULES).num_locations.tolist() == counts.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_action_saves_is_what_its_substitution_saves_unless_more_is_known(kind: str) -> None:
    model, seen = make(kind), world()
    state, actions = start(model, seen), seen.actions[:, 0]
    guess = state.legal.saving_of(actions)
    torch.testing.assert_close(guess, actions[:, 0] / 20.0 * seen.mask[:, 0].gather(1, actions[:, :1])[:, 0])
    plain = model.step(state, actions, torch.Generator(), 0.0)[1].reward
    assert torch.equal(plain, model.step(state, actions, torch.Generator(), 0.0, guess)[1].reward)
    assert not torch.equal(plain, model.step(state, actions, torch.Generator(), 0.0, guess + 0.1)[1].reward)


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_that_follow_from_costs_need_not_be_learnt(kind: str) -> None:
    model, seen = make(kind), world()
    # A step that loses first, and the reward best-so-far.
    signs = torch.where(torch.arange(6) == 1, -1.0, 1.0)
    taken = seen.taken * signs
    costs = 1 - F.pad((taken * taken.abs()).cumsum(1), (1, 0))
    lowest = costs.cummin(1).values
    features = torch.cat([seen.features[..., :-2], costs.unsqueeze(-1), lowest.unsqueeze(-1)], dim=-1)
    seen = dataclasses.replace(seen, features=features, taken=taken, rewards=-lowest.diff(dim=1))
    assert (seen.rewards == 0).any()
    model.fit_scales(seen)
    state = start(model, seen)
    for t in range(6):
        state, told = model.step(state, seen.actions[:, t], torch.Generator(), 0.0, taken[:, t])
        torch.testing.assert_close(told.reward, seen.rewards[:, t], atol=2e-3, rtol=0)
        torch.testing.assert_close(state.costs, features[:, t + 1, -2:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_world_is_learnt(kind: str) -> None:
    torch.set_num_threads(1)
    model, seen, unseen = make(kind), world(256), world(64, seed=9)
    model.fit_scales(seen)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        total(model.loss(seen)).backward()
        optimiser.step()
    told = model.step(start(model, unseen), unseen.actions[:, 0], torch.Generator(), 0.0)[1]
    error = (told.reward - unseen.rewards[:, 0]).abs().mean()
    assert error < 0.03
    assert error < 0.3 * unseen.rewards[:, 0].std()


@pytest.mark.parametrize("kind", KINDS)
def test_imagination_uses_no_environment_and_only_what_the_model_holds_legal(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the real environment was used")

    monkeypatch.setattr(_C, "VecRewriteEnv", refuse)
    monkeypatch.setattr(_C, "RewriteState", refuse)
    model, seen = make(kind), world()
    policy = TwoStageController(model.state_width, model.rules[:-1])
    generator = torch.Generator().manual_seed(0)
    rollout = model.imagine(start(model, seen), policy, 8, gumbel_of(generator), generator)
    assert rollout.num_steps >= 16
    assert rollout.values.shape == (len(rollout.rewards) + 1, 16)
    for state, actions, active in zip(rollout.states, rollout.actions, rollout.active, strict=True):
        legal = state.legal.mask.gather(1, actions[:, :1])[:, 0]
        assert legal[active].all()
    is_stop = rollout.actions[..., 0] == NUM_RULES
    assert rollout.terminated[is_stop].all()
    assert (rollout.rewards[is_stop] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_an_imagined_episode_that_has_ended_begins_anew_where_it_began(kind: str) -> None:
    model, seen = make(kind), world()
    policy = TwoStageController(model.state_width, model.rules[:-1])
    with torch.no_grad():
        policy.stop += 3.0  # often
    generator = torch.Generator().manual_seed(0)
    rollout = model.imagine(start(model, seen), policy, 8, gumbel_of(generator), generator)
    assert rollout.active.all()
    assert rollout.num_steps == 8 * 16
    assert 0 < rollout.ended.sum() < 8 * 16
    for t in range(7):
        again = rollout.ended[t]
        for name in ("mask", "num_locations", "savings"):
            begun = getattr(rollout.states[0].legal, name)
            assert torch.equal(getattr(rollout.states[t + 1].legal, name)[again], begun[again])
        begun = rollout.states[0].features
        assert torch.equal(rollout.states[t + 1].features[again], begun[again])
        if not again.all():
            assert not torch.equal(rollout.states[t + 1].features[~again], begun[~again])


def test_doubt_is_disagreement_and_is_taken_off_the_reward() -> None:
    model, seen = make("discrete"), world()
    policy = TwoStageController(model.state_width, model.rules[:-1])
    told = model.step(start(model, seen), seen.actions[:, 0], torch.Generator())[1]
    assert (told.doubt > 0).all()
    runs = []
    for penalty in (0.0, 5.0):
        generator = torch.Generator().manual_seed(3)
        runs.append(
            model.imagine(
                start(model, seen), policy, 4, gumbel_of(generator), generator, doubt_penalty=penalty
            )
        )
    real_step = runs[0].active & (runs[0].actions[..., 0] != NUM_RULES)
    assert (runs[1].rewards[real_step] < runs[0].rewards[real_step]).all()
    for prior in model.priors[1:]:
        prior.load_state_dict(model.priors[0].state_dict())
    agreed = model.step(start(model, seen), seen.actions[:, 0], torch.Generator())[1]
    torch.testing.assert_close(agreed.doubt, torch.zeros(16))


@pytest.mark.parametrize("kind", KINDS)
def test_no_imagined_graph_costs_less_than_nothing(kind: str) -> None:
    model = make(kind).eval()
    features = torch.cat([torch.zeros(2, WIDTH - 2), torch.tensor([[0.1, 0.1], [0.9, 0.3]])], dim=1)
    mask = torch.ones(2, NUM_RULES + 1, dtype=torch.bool)
    state = model.start(features, Legal(mask, mask[:, :-1].long(), torch.full((2, NUM_RULES), 0.5).sqrt()))
    actions = torch.zeros(2, 2, dtype=torch.int64)
    after, _ = model.step(state, actions, torch.Generator().manual_seed(0))
    torch.testing.assert_close(after.costs, torch.tensor([[0.0, 0.0], [0.4, 0.3]]))
    # What was recorded stays as it is.
    after, _ = model.step(state, actions, torch.Generator().manual_seed(0), taken=torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(after.costs, torch.tensor([[-0.15, -0.15], [0.65, 0.3]]))
