"""Encoders, value and controllers: training/networks/."""

from __future__ import annotations

import pytest
import torch

from tests.agent.agent_cases import LIBRARY, make_env, make_observation
from torchrlopt import _C
from torchrlopt.agent.networks.actions import LatentState, Legal, no_noise
from torchrlopt.agent.observation import Schema, observe
from torchrlopt.env import OUTCOMES
from training.networks.candidate_controller import ControllerConfig, action_groups, new_controller
from training.networks.encoders import ENCODERS
from training.networks.substitution_encoder import SubstitutionEncoder, SubstitutionGraphs
from training.networks.two_stage_controller import TwoStageController
from training.networks.value_head import HIGHEST, NUM_BINS, ValueHead

SCHEMA = Schema.current()


def gumbel(sizes: list[int], seed: int = 0) -> torch.Tensor:
    uniform = torch.rand(sum(sizes), generator=torch.Generator().manual_seed(seed))
    return -(-uniform.clamp(1e-9, 1 - 1e-7).log()).log()


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_learns_and_does_not_mix_graphs(name: str) -> None:
    torch.manual_seed(0)
    encoder = ENCODERS[name](SCHEMA, 32)
    states = make_observation(3)
    nodes, graphs = encoder(states)
    assert nodes.shape == (len(states.ops), 32)
    assert graphs.shape == (3, 32)
    (nodes.square().mean() + graphs.square().mean()).backward()
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.norm() > 0, key
    for i, one in enumerate(states.split()):
        torch.testing.assert_close(encoder(one)[1][0], graphs[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ENCODERS)
def test_the_order_of_nodes_does_not_matter(name: str) -> None:
    torch.manual_seed(0)
    encoder = ENCODERS[name](SCHEMA, 32)
    states = make_observation(1)
    order = torch.randperm(len(states.ops), generator=torch.Generator().manual_seed(1))
    where = torch.empty_like(order)
    where[order] = torch.arange(len(order))
    shuffled = type(states)(
        **{
            **{name: getattr(states, name) for name in states.__dataclass_fields__},
            "ops": states.ops[order],
            "nodes": states.nodes[order],
            "edge_index": where[states.edge_index],
        }
    )
    torch.testing.assert_close(encoder(shuffled)[1], encoder(states)[1], rtol=1e-4, atol=1e-5)


def test_targets_of_values_have_their_mean_and_add_up_to_one() -> None:
    head = ValueHead(4, 8)
    values = torch.linspace(0.05, 0.7, 30)
    targets = head.targets(values)
    assert targets.shape == (30, NUM_BINS)
    torch.testing.assert_close(targets.sum(-1), torch.ones(30))
    torch.testing.assert_close(head.mean(targets.log()), values, rtol=0, atol=1e-3)
    ends = head.targets(torch.tensor([-3.0, 9.0]))
    assert ends[0].argmax() == 0
    assert ends[1].argmax() == NUM_BINS - 1
    assert head.mean(ends.log())[1] > HIGHEST - 0.05


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_untrained_controller_is_greedy(encoder: str) -> None:
    controller = new_controller(LIBRARY, ControllerConfig(encoder=encoder))
    states = make_observation(2)
    actions, decision = controller.act(states, no_noise)
    column = SCHEMA.column("candidate", "cost_delta")
    for episode, (one, action) in enumerate(zip(states.split(), actions.tolist(), strict=True)):
        deltas = one.candidates[:, column]
        assert deltas.min() < 0
        assert deltas[action] == deltas.min()
        assert decision.log_prob[episode] < 0


def test_the_untrained_controller_stops_where_nothing_saves() -> None:
    controller = new_controller(LIBRARY)
    states = make_observation(2)
    dear = states.candidates.clone()
    dear[:, SCHEMA.column("candidate", "cost_delta")] = 0.01
    worse = type(states)(
        **{**{name: getattr(states, name) for name in states.__dataclass_fields__}, "candidates": dear}
    )
    actions, _ = controller.act(worse, no_noise)
    assert torch.equal(actions, worse.counts)


def test_probabilities_of_an_episode_add_up_to_one_and_evaluate_is_act() -> None:
    controller = new_controller(LIBRARY, seed=3)
    with torch.no_grad():
        for parameter in controller.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    states = make_observation(4)
    log_probs, group, _ = controller(states)
    assert torch.equal(group, action_groups(states))
    sums = torch.zeros(4).index_add(0, group, log_probs.exp())
    torch.testing.assert_close(sums, torch.ones(4))
    for seed in range(5):
        actions, decision = controller.act(states, lambda sizes, seed=seed: gumbel(sizes, seed))
        again = controller.evaluate(states, actions)
        torch.testing.assert_close(again.log_prob, decision.log_prob)
        torch.testing.assert_close(again.value, decision.value)
        assert (actions <= states.counts).all()


def test_chosen_candidates_do_what_their_deltas_say() -> None:
    controller = new_controller(LIBRARY)
    env = make_env(2)
    states = observe(env)
    actions, _ = controller.act(states, no_noise)
    outcomes = env.step(actions.tolist())
    saved = outcomes[:, OUTCOMES["cost_before_us"]] - outcomes[:, OUTCOMES["cost_after_us"]]
    rows = states.candidate_offsets[:-1] + actions
    expected = -states.candidates[rows, SCHEMA.column("candidate", "cost_delta")].double().numpy()
    assert (saved > 0).all()
    torch.testing.assert_close(
        torch.tensor(saved / outcomes[:, OUTCOMES["initial_us"]]),
        torch.tensor(expected),
        rtol=1e-4,
        atol=1e-6,
    )


def latent_states(batch: int = 6, num_substitutions: int = 9) -> LatentState:
    generator = torch.Generator().manual_seed(2)
    counts = torch.randint(0, 4, (batch, num_substitutions), generator=generator)
    mask = torch.cat([counts > 0, torch.ones(batch, 1, dtype=torch.bool)], dim=1)
    savings = torch.randn(batch, num_substitutions, generator=generator) / 10 * (counts > 0)
    return LatentState(torch.randn(batch, 16, generator=generator), Legal(mask, counts, savings))


def test_two_stages_choose_what_is_legal_only() -> None:
    torch.manual_seed(0)
    controller = TwoStageController(16, torch.randn(9, 8))
    states = latent_states()
    for seed in range(20):
        actions, decision = controller.act(states, lambda sizes, seed=seed: gumbel(sizes, seed))
        assert states.legal.mask.gather(1, actions[:, :1]).all()
        counts = torch.cat([states.legal.num_locations, torch.ones(6, 1, dtype=torch.int64)], 1)
        assert (actions[:, 1] < counts.gather(1, actions[:, :1])[:, 0]).all()
        torch.testing.assert_close(controller.evaluate(states, actions).log_prob, decision.log_prob)


def test_two_stage_probabilities_add_up_to_one() -> None:
    torch.manual_seed(0)
    controller = TwoStageController(16, torch.randn(9, 8))
    states = latent_states(1)
    total = 0.0
    for substitution in torch.nonzero(states.legal.mask[0])[:, 0].tolist():
        count = 1 if substitution == 9 else int(states.legal.num_locations[0, substitution])
        for rank in range(count):
            total += controller.evaluate(states, torch.tensor([[substitution, rank]])).log_prob.exp().item()
    assert total == pytest.approx(1, abs=1e-5)


def test_an_episode_with_nothing_to_do_stops_for_certain() -> None:
    controller = TwoStageController(16, torch.randn(9, 8))
    mask = torch.zeros(2, 10, dtype=torch.bool)
    mask[:, -1] = True
    legal = Legal(mask, torch.zeros(2, 9, dtype=torch.int64), torch.zeros(2, 9))
    states = LatentState(torch.randn(2, 16), legal)
    actions, decision = controller.act(states, gumbel)
    assert actions.tolist() == [[9, 0], [9, 0]]
    torch.testing.assert_close(decision.log_prob, torch.zeros(2))
    torch.testing.assert_close(decision.entropy, torch.zeros(2))
    decision.log_prob.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in controller.parameters())


def test_an_embedding_depends_on_what_a_substitution_says_not_on_its_company() -> None:
    schema = Schema.current()
    encoder = SubstitutionEncoder(schema)
    names = LIBRARY.names
    text = "\n".join(LIBRARY.text(name) for name in (names[40], names[7]))
    alone = encoder(SubstitutionGraphs.of(_C.Library(text), schema))
    whole = encoder(SubstitutionGraphs.of(LIBRARY, schema))
    torch.testing.assert_close(alone, whole[[40, 7]], rtol=1e-4, atol=1e-5)
