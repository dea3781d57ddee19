"""The rows WM and WM+: training/dream_trainer.py and what it learns from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, TWINS, make_env
from torchrlopt import _C
from torchrlopt.agent.networks.actions import Choices, LatentState, Legal
from torchrlopt.agent.observation import Observation, Schema, observe
from torchrlopt.errors import OptionsError
from training import checkpoints
from training.config import Config
from training.dream_trainer import DreamTrainer, fit, seen_in
from training.episodes.latent_task import RANDOM
from training.random_keys import gumbel_of
from training.trainer import LOG, log, read_log
from training.world.latent_controller import LatentController
from training.world.model_scores import model_scores
from training.world.replay import UniformPolicy, join

SMALL = Config(
    row="wm",
    encoder="graph_network",
    groups=2,
    rollouts=4,
    max_steps=4,
    dream_batch=16,
    dream_horizon=4,
    dream_updates=1,
    model_epochs=2,
    warm_up=1,
)


def test_what_is_legal_is_what_the_core_says() -> None:
    env = make_env(3, has_macros=False)
    seen = observe(env)
    choices = Choices(seen, len(LIBRARY))
    mask, counts = choices.legal.mask, choices.legal.num_locations
    delta = seen.candidates[:, Schema.current().column("candidate", "cost_delta")]
    for episode in range(3):
        one = seen.episode(episode)
        for substitution in range(len(LIBRARY)):
            places = one.locations[one.substitutions == substitution].tolist()
            assert int(counts[episode, substitution]) == len(places)
            assert bool(mask[episode, substitution]) == bool(places)
            saved = []
            for rank, location in enumerate(places):
                actions = torch.tensor([[substitution, rank]] * 3)
                rows = choices.rows_of(actions)
                row = int(rows[episode])
                assert row == env.find(episode, substitution, location)
                saved.append(float(choices.savings_of(rows)[episode]))
                exact = -float(delta[int(seen.candidate_offsets[episode]) + row])
                assert saved[-1] * abs(saved[-1]) == pytest.approx(exact, rel=1e-5, abs=1e-9)
            mean = sum(each * abs(each) for each in saved) / max(1, len(saved))
            told = float(choices.legal.savings[episode, substitution])
            assert told * abs(told) == pytest.approx(mean, rel=1e-5, abs=1e-9)
    assert mask[:, -1].all()
    stop = torch.tensor([[len(LIBRARY), 0]] * 3)
    assert torch.equal(choices.rows_of(stop), seen.counts)
    assert (choices.savings_of(seen.counts) == 0).all()


def test_with_macros_a_substitution_at_a_class_of_places_is_another_one() -> None:
    def begun(has_macros: bool) -> Observation:
        env = _C.VecRewriteEnv(
            [_C.parse_graph(TWINS), GRAPHS[1]], LIBRARY, COST, num_envs=3, has_macros=has_macros
        )
        env.reset([0, 1, 2], [{"graph": 1}, {"graph": 0}, {"graph": 0, "random_steps": 1, "seed": 0}])
        return observe(env)

    seen, size = begun(True), len(LIBRARY)
    choices = Choices(seen, 2 * size, has_macros=True)
    single = Choices(begun(False), size).legal
    assert torch.equal(choices.legal.num_locations[:, :size], single.num_locations)
    assert torch.allclose(choices.legal.savings[:, :size], single.savings)
    is_macro = seen.column("candidate", "is_macro") > 0
    assert is_macro.any()
    assert int(choices.legal.num_locations[:, size:].sum()) == int(is_macro.sum())
    found = []
    for episode in range(3):
        first = int(seen.candidate_offsets[episode])
        for kind in torch.nonzero(choices.legal.num_locations[episode]).flatten().tolist():
            for rank in range(int(choices.legal.num_locations[episode, kind])):
                row = first + int(choices.rows_of(torch.tensor([[kind, rank]] * 3))[episode])
                assert int(seen.substitutions[row]) == kind % size
                assert bool(is_macro[row]) == (kind >= size)
                found.append(row)
    assert sorted(found) == list(range(len(seen.candidates))), "each candidate is one action"
    stop = torch.tensor([[2 * size, 0]] * 3)
    assert torch.equal(choices.rows_of(stop), seen.counts)


def test_uniform_play_stops_only_where_nothing_is_left() -> None:
    counts = torch.tensor([[2, 0, 6], [0, 0, 0]]).repeat(2000, 1)
    legal = Legal(torch.cat([counts > 0, torch.ones(4000, 1, dtype=torch.bool)], 1), counts, counts * 0.0)
    draw = gumbel_of(torch.Generator().manual_seed(0))
    actions, told = UniformPolicy().act(LatentState(torch.zeros(4000, 1), legal), draw)
    assert (actions[1::2] == torch.tensor([3, 0])).all()
    first = actions[0::2]
    assert (first[:, 0] != 3).all()
    assert (first[:, 0] == 2).float().mean().item() == pytest.approx(0.75, abs=0.04)
    assert set(first[first[:, 0] == 2][:, 1].tolist()) == set(range(6))
    assert told.log_prob[0].exp().item() == pytest.approx(1 / 8)


@pytest.mark.parametrize("row", ["wm", "wm_plus"])
def test_a_round_of_real_and_imagined_episodes(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = DreamTrainer(dataclasses.replace(SMALL, row=row), tmp_path, graph=GRAPHS[1])
    logs = trainer.begin()
    assert logs["last_loss"] < logs["first_loss"]
    frozen = [parameter.clone() for parameter in trainer.encoder.parameters()]
    logs = trainer.step()
    assert logs["real_steps"] == trainer.real_steps > 0
    assert logs["imagined_steps"] == SMALL.dream_updates * SMALL.dream_batch * SMALL.dream_horizon
    assert logs["imagined_per_second"] > 0
    assert logs["first_ratio_error"] < 1e-5
    assert all(torch.equal(a, b) for a, b in zip(frozen, trainer.encoder.parameters(), strict=True))

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the real environment was used")

    monkeypatch.setattr(_C, "VecRewriteEnv", refuse)
    before, dreamt = trainer.real_steps, trainer.imagined_steps
    rollout = trainer.dream(torch.Generator().manual_seed(1))
    assert trainer.real_steps == before
    assert trainer.imagined_steps == dreamt + rollout.num_steps


def test_recorded_episodes_are_those_that_were_played(tmp_path: Path) -> None:
    trainer = DreamTrainer(SMALL, tmp_path, graph=GRAPHS[0])
    episodes = trainer.collect(0, RANDOM)
    rollouts, seen = [each.rollout for each in episodes], seen_in(episodes)
    joined = join(seen)
    assert joined.valid.sum() == sum(rollout.num_steps for rollout in rollouts) == trainer.real_steps
    first = rollouts[0]
    assert torch.equal(seen[0].rewards.T, first.rewards)
    assert torch.equal(seen[0].mask[:, 0], first.states[0].legal.mask)
    chosen = joined.mask[:, :-1].gather(2, joined.actions[..., :1])[..., 0]
    assert chosen[joined.valid].all(), "only legal actions are played"


def test_a_model_that_has_learnt_scores_better_than_one_that_has_not(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, rollouts=8, groups=3, original_share=1.0)
    trainer = DreamTrainer(config, tmp_path, graph=GRAPHS[1])
    trainer.begin()
    seen = trainer.replay.joined()
    generator = torch.Generator().manual_seed(0)
    before = model_scores(trainer.model, seen, generator)
    fit(trainer.model, trainer.model_optimiser, seen, 60, generator)
    after = model_scores(trainer.model, seen, generator)
    assert after["mask_f1"] > max(0.5, before["mask_f1"])
    assert after["reward_pearson"] > max(0.5, before["reward_pearson"])
    assert after["real_gain"] == before["real_gain"]


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    straight = DreamTrainer(SMALL, tmp_path, graph=GRAPHS[1])
    straight.begin()
    straight.step()
    straight.save()
    straight.step()
    resumed = DreamTrainer(SMALL, tmp_path, resume=True, graph=GRAPHS[1])
    resumed.step()
    pairs = zip(straight.policy.parameters(), resumed.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert resumed.real_steps == straight.real_steps
    assert resumed.imagined_steps == straight.imagined_steps > 0
    with pytest.raises(FileExistsError, match="--resume"):
        DreamTrainer(SMALL, tmp_path, graph=GRAPHS[1])
    with pytest.raises(OptionsError, match="dream_horizon"):
        DreamTrainer(dataclasses.replace(SMALL, dream_horizon=5), tmp_path, resume=True)


@pytest.mark.parametrize("macros", [False, True])
def test_a_whole_run_ends_in_networks_whose_encoder_runs_without_pyg(macros: bool, tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, updates=3, macros=macros, original_share=1.0)
    trainer = DreamTrainer(config, tmp_path, graph=_C.parse_graph(TWINS))
    assert {type(block).__name__ for block in trainer.encoder.blocks} == {"MetaLayer"}
    trainer.run()
    recorded = trainer.replay.joined()
    taken = recorded.actions[..., 0][recorded.valid]
    is_macro = (taken >= len(LIBRARY)) & (taken < trainer.model.num_substitutions)
    assert is_macro.any() == macros
    network, metadata = checkpoints.load(trainer.export({"held_out": 0.9}), LIBRARY)
    assert isinstance(network, LatentController)
    assert {type(block).__name__ for block in network.encoder.blocks} == {"GraphNetworkBlock"}
    assert metadata["row"] == "wm"
    assert network.config.has_macros == macros
    assert network.chooser().has_macros == macros
    assert metadata["updates"] == "3"
    assert int(metadata["imagined_steps"]) == trainer.imagined_steps > 0
    for name, tensor in trainer.controller.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor)
    assert list(tmp_path.glob("events.out.tfevents.*"))
    assert [update for update, _ in read_log(tmp_path)["mask_f1"]] == [3]


def test_a_log_that_was_torn_by_a_kill_is_read_and_continued(tmp_path: Path) -> None:
    log(tmp_path, 1, {"gain": 0.5})
    path = tmp_path / LOG
    with path.open("a", encoding="utf-8") as file:
        file.write('{"update": 2, "ga')
    assert read_log(tmp_path) == {"gain": [(1, 0.5)]}
    log(tmp_path, 2, {"gain": 0.75})
    assert read_log(tmp_path) == {"gain": [(1, 0.5), (2, 0.75)]}
