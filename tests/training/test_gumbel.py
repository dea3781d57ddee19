"""Gumbel AlphaZero: training/episodes/tree_search.py, searched_play.py, training/learning/gumbel.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.agent.agent_cases import GRAPHS
from tests.core.test_search import HILL
from tests.core.test_search import LIBRARY as HILLS
from torchrlopt import _C
from torchrlopt.agent.observation import Observation
from torchrlopt.env import OUTCOMES
from torchrlopt.errors import OptionsError
from torchrlopt.substitutions import load_library
from training.config import Config
from training.episodes.play import CandidateChooser, Key
from training.episodes.searched_play import SearchedRollout, play_searched
from training.episodes.tree_search import Floats, Node, Searched, TreeSearch, sequential_halving, slots_for
from training.graphs.sketch import Sketch
from training.learning import gumbel
from training.networks.candidate_controller import new_controller

LIBRARY, COST = load_library(), _C.CostModel()
SIZES = {"rollouts": 2, "max_steps": 8, "simulations": 8, "considered": 4, "teacher_expansions": 50}
CONFIG = Config.of_row("gumbel", original_share=1.0, warm_up=0, **SIZES)


def played(config: Config = CONFIG, graph: _C.Graph = GRAPHS[0], group: int = 0) -> SearchedRollout:
    chooser = CandidateChooser(new_controller(LIBRARY).eval())
    found = play_searched(chooser, LIBRARY, COST, Key(0, 0, group), config, graph)
    assert found is not None
    return found


def test_half_of_the_actions_drop_out_after_each_round() -> None:
    assert sequential_halving(4, 8) == [0, 0, 0, 0, 1, 1, 2, 2]
    assert sequential_halving(1, 3) == [0, 1, 2]
    for considered, simulations in ((16, 32), (16, 5), (3, 64), (2, 1)):
        order = sequential_halving(considered, simulations)
        assert len(order) == simulations
        assert order.count(0) == min(considered, simulations)


def uniform(states: Observation) -> tuple[list[Floats], Floats]:
    counts = (states.counts + 1).tolist()
    return [np.zeros(count) for count in counts], np.zeros(len(counts))


def hill_searched(simulations: int, episodes: int = 2) -> tuple[_C.VecRewriteEnv, TreeSearch, list[Searched]]:
    """With a network that knows nothing."""
    total = episodes * slots_for(simulations)
    env = _C.VecRewriteEnv([_C.parse_graph(HILL)], _C.Library(HILLS), _C.CostModel(), num_envs=total)
    env.reset(list(range(total)), [{"graph": 0}] * total)
    tree = TreeSearch(env, episodes, simulations, 16, uniform)
    count = env.sizes([0])["candidates"] + 1
    noise = [np.linspace(0.0, 0.1 * i, count) for i in range(episodes)]
    found = tree.search(list(range(episodes)), [np.zeros(count)] * episodes, np.zeros(episodes), noise)
    return env, tree, found


def test_a_hill_is_crossed_where_the_search_looks_behind_it() -> None:
    env, tree, found = hill_searched(40)
    first_us = env.outcomes()[0, OUTCOMES["initial_us"]]
    for each in found:
        assert each.policy.sum() == pytest.approx(1.0)
        assert each.best_us < first_us
        assert each.action == int(each.policy.argmax()) == 0, "the only candidate, which loses at first"
    lowest = min(each.best_us for each in found)
    tree.take(0, found[0].action)
    outcome = env.outcomes()[0]
    assert outcome[OUTCOMES["cost_after_us"]] > first_us
    assert env.steps(0) == [("square_relu", 0)]
    # Three steps lead there; what was found is what the graph costs.
    graph = _C.replay(
        _C.parse_graph(HILL), _C.Library(HILLS), [("square_relu", 0), ("square_relu", 0), ("cancel_three", 0)]
    )
    assert lowest == pytest.approx(_C.CostModel().total(graph)["time_us"])


def test_what_is_not_visited_counts_as_the_mean_of_what_is_known() -> None:
    node = Node(0, np.zeros(3), 0.3, 1.0)
    assert node.scaled_completed_q().tolist() == [0.0, 0.0, 0.0], "nothing is known: nothing to tell apart"
    node.visits[:] = (2, 1, 0)
    node.value_sums[:] = (0.2, 0.4, 0.0)
    scaled = node.scaled_completed_q()
    # Values 0.1 and 0.4; the third: (0.3 + 3 * (0.1 + 0.4) / 2) / 4.
    assert scaled == pytest.approx([0.0, 5.2, 5.2 * (0.2625 - 0.1) / 0.3])
    assert node.improved_policy().argmax() == 1
    assert node.inner_choice() == 1
    node.visits[:] = (2, 900, 0)
    node.value_sums[:] = (0.2, 360.0, 0.0)
    assert node.inner_choice() == 1


def test_what_is_played_is_what_the_core_says() -> None:
    rollout = played()
    assert rollout.num_shown == 1
    assert rollout.returns.shape == (3,)
    assert bool((rollout.returns > 0).all())
    assert rollout.greedy_gain > 0
    for t, (states, policy) in enumerate(zip(rollout.states, rollout.policies, strict=True)):
        sums = torch.zeros(3).index_add(0, torch.cat([states.candidate_episode, torch.arange(3)]), policy)
        assert sums[rollout.active[t]].tolist() == pytest.approx([1.0] * int(rollout.active[t].sum()))
        assert bool((rollout.found[t] <= rollout.best[t] + 1e-6).all())
    falls = (rollout.best[:-1] - rollout.best[1:]).float()
    assert torch.allclose(rollout.rewards, falls * rollout.active, atol=1e-7)


def test_values_are_of_the_best_that_was_found_later() -> None:
    rollout = played()
    lessons = iter(gumbel.lessons_of(rollout))
    for t in range(len(rollout.states)):
        for b in torch.nonzero(rollout.active[t])[:, 0].tolist():
            later = min(float(rollout.best[-1, b]), float(rollout.found[t:, b].min()))
            assert next(lessons).value == pytest.approx(float(rollout.best[t, b]) - later, abs=1e-6)
    assert next(lessons, None) is None


def teaching(rollout: SearchedRollout) -> list[bool]:
    """Of each episode, whether it teaches its policy; in all steps or in none."""
    owners = [b for active in rollout.active for b in torch.nonzero(active)[:, 0].tolist()]
    lessons = gumbel.lessons_of(rollout)
    found = []
    for b in range(rollout.returns.shape[0]):
        own = {lesson.target is not None for lesson, owner in zip(lessons, owners, strict=True) if owner == b}
        assert len(own) == 1
        found.append(own.pop())
    return found


def test_only_episodes_teach_that_do_as_well_as_the_network_alone() -> None:
    rollout = played()
    gains = rollout.returns.tolist()
    is_better = gains[0] > max(gains[1:]) + 1e-6
    assert teaching(dataclasses.replace(rollout, greedy_gain=-1.0)) == [is_better, True, True]
    assert teaching(dataclasses.replace(rollout, greedy_gain=1.0)) == [is_better, False, False]
    assert teaching(dataclasses.replace(rollout, greedy_gain=1.0, num_shown=0)) == [False] * 3


def test_what_is_shown_teaches_where_it_beats_the_search() -> None:
    rollout = played()
    better = rollout.rewards.clone()
    better[0, 0] += 1.0
    lessons = gumbel.lessons_of(dataclasses.replace(rollout, rewards=better))
    assert lessons[0].target is not None
    assert sorted(lessons[0].target.tolist())[-2:] == [0.0, 1.0], "one step, without doubt"
    worse = rollout.rewards.clone()
    worse[0, 0] -= 1.0
    assert not teaching(dataclasses.replace(rollout, rewards=worse))[0]


def test_learning_brings_the_policy_nearer_to_the_search() -> None:
    controller = new_controller(LIBRARY, seed=0).train()
    optimiser = torch.optim.Adam(controller.parameters(), 1e-3)
    rollouts = [played(), played(graph=GRAPHS[1])]
    losses = [
        gumbel.update(controller, optimiser, rollouts, CONFIG, torch.Generator().manual_seed(i))
        for i in range(12)
    ]
    assert losses[-1]["policy_loss"] < losses[0]["policy_loss"]
    assert losses[-1]["value_loss"] < losses[0]["value_loss"]


def test_a_graph_with_nothing_to_do_is_left_out() -> None:
    nothing = _C.parse_graph("graph (x: f32[2]) { y = Sin(x) return y }")
    chooser = CandidateChooser(new_controller(LIBRARY).eval())
    assert play_searched(chooser, LIBRARY, COST, Key(0, 0, 0), CONFIG, nothing) is None


def test_a_teacher_whose_step_cannot_be_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.episodes.searched_play.shown_steps", lambda *_: [(0, 999)])
    with pytest.raises(RuntimeError, match="cannot be taken"):
        played()


@pytest.mark.parametrize(
    ("given", "message"),
    [({"reward": "R1"}, "adds up gains"), ({"considered": 64}, "considered at most 32")],
)
def test_what_the_row_cannot_do_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        Config.of_row("gumbel", **given)
    assert Config.of_row("plan", **given).row == "plan"


def test_blocks_are_drawn_as_graphs_are_read() -> None:
    sketch = Sketch()
    plain, wide = (sketch.conv(sketch.input(1, 8, 6, 6), 8, kernel) for kernel in (1, 3))
    text = sketch.finish(plain, wide).text()
    assert "Conv(x1, %w2)" in text
    assert "pads=[1,1,1,1]" in text
    assert "strides" not in text
