"""VecRewriteEnv of the core: csrc/env/, csrc/search/state.cpp."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.agent.agent_cases import TWINS
from tests.property.test_match_set import ATTENTION, BLOCK
from torchrlopt import _C, _tools
from torchrlopt.env import allocate
from torchrlopt.errors import EnvError
from torchrlopt.substitutions import load_library

LIBRARY = load_library()
COST = _C.CostModel()
GRAPHS = {"attention": ATTENTION, "block": BLOCK, "twins": TWINS}
COLUMNS = {name: i for i, name in enumerate(_C.OUTCOME_COLUMNS)}
FEATURES = {
    array: [name for each, name in _C.feature_columns() if each == array]
    for array in ("node", "edge", "global", "candidate")
}


def make(num_envs: int = 2, texts: list[str] | None = None, **options: object) -> _C.VecRewriteEnv:
    graphs = [_C.parse_graph(text) for text in (texts or list(GRAPHS.values()))]
    env = _C.VecRewriteEnv(graphs, LIBRARY, COST, num_envs=num_envs, **options)
    env.reset(range(num_envs), [{"graph": i % len(graphs), "seed": i} for i in range(num_envs)])
    return env


def observe(env: _C.VecRewriteEnv) -> dict[str, np.ndarray]:
    arrays = allocate(env.sizes())
    env.observe(arrays)
    return arrays


def num_candidates(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.diff(arrays["candidate_offsets"])


def inputs_of(graph: _C.Graph, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    result = {}
    for node in graph.inputs:
        _, dims = graph.type((node, 0))
        name = graph.node(node)["name"]
        positive = name in ("v", "s", "m")  # a variance must be positive
        values = generator.uniform(0.5, 1.5, dims) if positive else generator.normal(size=dims) * 0.3
        result[name] = values
    return result


def assert_sound(env: _C.VecRewriteEnv, index: int, original: _C.Graph) -> None:
    """The final graph computes what the original computes, and replaying its steps gives it."""
    graph = env.graph(index)
    graph.check()
    replayed = _C.replay(original, LIBRARY, env.steps(index))
    assert replayed.hash() == graph.hash()
    arrays = inputs_of(original)
    for expected, got in zip(_tools.evaluate(original, arrays), _tools.evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def rollout(num_threads: int, policy: Callable[[random.Random, int], int], steps: int = 25) -> list[object]:
    env = make(num_envs=5, num_threads=num_threads)
    generator = random.Random(0)
    seen: list[object] = []
    for _ in range(steps):
        arrays = observe(env)
        seen.append({name: array.tobytes() for name, array in arrays.items()})
        actions = [policy(generator, int(count)) for count in num_candidates(arrays)]
        seen.append(env.step(actions).tolist())
    seen.append([env.steps(i) for i in range(5)])
    return seen


def test_one_and_two_threads_make_the_same_rollout() -> None:
    def policy(generator: random.Random, count: int) -> int:
        return generator.randrange(count + 1) if count else 0

    assert rollout(1, policy) == rollout(2, policy) == rollout(2, policy)


def worst(arrays: dict[str, np.ndarray], index: int) -> int:
    begin, end = arrays["candidate_offsets"][index : index + 2]
    return int(arrays["candidates"][begin:end, 0].argmax()) if end > begin else 0


POLICIES = ("random", "worst", "illegal")


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_stays_sound(name: str, policy: str) -> None:
    """200 episodes of each policy, the graphs together."""
    original = _C.parse_graph(GRAPHS[name])
    num_envs = 67
    env = make(num_envs, [GRAPHS[name]], num_threads=2, max_steps=12)
    generator = random.Random(1)
    for _ in range(12):
        arrays = observe(env)
        before = [env.graph(i).hash() for i in range(num_envs)]
        counts = num_candidates(arrays)
        actions = []
        for i in range(num_envs):
            count = int(counts[i])
            if policy == "worst":
                actions.append(worst(arrays, i))
            elif policy == "illegal" and generator.random() < 0.5:
                actions.append(generator.choice([-1, -(2**40), count + 1, 2**60]))
            else:
                actions.append(generator.randrange(count + 1))
        outcome = env.step(actions)
        assert np.isfinite(outcome).all()
        illegal = outcome[:, COLUMNS["is_illegal"]] > 0
        for i in np.flatnonzero(illegal):
            assert env.graph(int(i)).hash() == before[i], "an illegal action changes nothing"
    assert (env.outcomes()[:, COLUMNS["terminated"]] + env.outcomes()[:, COLUMNS["truncated"]] > 0).all()
    for i in range(num_envs):
        assert_sound(env, i, original)


def test_deltas_add_up_to_the_difference_of_costs() -> None:
    env = make(num_envs=6, max_steps=40)
    generator = random.Random(2)
    deltas = np.zeros(6)
    first = env.outcomes()[:, COLUMNS["cost_after_us"]]
    initial = env.outcomes()[:, COLUMNS["initial_us"]]
    for _ in range(40):
        arrays = observe(env)
        actions = []
        for i in range(6):
            begin, end = arrays["candidate_offsets"][i : i + 2]
            action = generator.randrange(max(1, int(end - begin)))
            finished = env.outcomes()[i, COLUMNS["terminated"]] or env.outcomes()[i, COLUMNS["truncated"]]
            if end > begin and not finished:
                deltas[i] += float(arrays["candidates"][begin + action, 0]) * initial[i]
            actions.append(action)
        env.step(actions)
    costs = [COST.total(env.graph(i))["time_us"] for i in range(6)]
    np.testing.assert_allclose(env.outcomes()[:, COLUMNS["cost_after_us"]], costs, rtol=1e-9)
    np.testing.assert_allclose(deltas, costs - first, rtol=1e-4, atol=1e-3)  # features are single precision


def test_a_symmetry_class_is_taken_in_one_step() -> None:
    env = make(1, [TWINS])
    arrays = observe(env)
    macro = FEATURES["candidate"].index("is_macro")
    members = FEATURES["candidate"].index("log_num_members")
    rows = np.flatnonzero(arrays["candidates"][:, macro])
    names = {LIBRARY.names[arrays["substitutions"][row]]: row for row in rows}
    assert "normalise_linear_bias" in names or "normalise_linear" in names, names
    row = next(iter(names.values()))
    assert 2 ** arrays["candidates"][row, members] - 1 == pytest.approx(2)
    delta = float(arrays["candidates"][row, 0])
    outcome = env.step([int(row)])[0]
    assert outcome[COLUMNS["num_steps"]] == 1
    assert len(env.steps(0)) == 2, "recorded as plain steps"
    gained = (outcome[COLUMNS["cost_after_us"]] - outcome[COLUMNS["cost_before_us"]]) / outcome[
        COLUMNS["initial_us"]
    ]
    assert gained == pytest.approx(delta, abs=1e-6)
    assert_sound(env, 0, _C.parse_graph(TWINS))


def test_no_macros_where_none_are_wanted() -> None:
    env = make(1, [TWINS], has_macros=False)
    assert not observe(env)["candidates"][:, FEATURES["candidate"].index("is_macro")].any()


def test_masks_say_what_is_legal() -> None:
    env = make(num_envs=3, max_locations=4)
    substitutions = np.zeros((3, len(LIBRARY) + 1), dtype=bool)
    locations = np.ones((3, len(LIBRARY), 4), dtype=bool)
    env.masks(substitutions, locations)
    arrays = observe(env)
    macro = FEATURES["candidate"].index("is_macro")
    for i in range(3):
        begin, end = arrays["candidate_offsets"][i : i + 2]
        single = [row for row in range(begin, end) if not arrays["candidates"][row, macro]]
        expected = {(int(arrays["substitutions"][row]), int(arrays["locations"][row])) for row in single}
        assert {(s, place) for s, place in np.argwhere(locations[i]).tolist()} == {
            each for each in expected if each[1] < 4
        }
        assert substitutions[i, -1], "stop is always legal"
        for substitution, location in expected:
            row = env.find(i, substitution, location)
            assert arrays["substitutions"][begin + row] == substitution
            assert arrays["locations"][begin + row] == location
    assert env.find(0, 0, 10**6) == -1


def test_starts_are_a_prefix_or_a_random_walk() -> None:
    graph = _C.parse_graph(BLOCK)
    plan = _C.search(graph, LIBRARY, COST, searcher="greedy")["steps"]
    env = _C.VecRewriteEnv([graph], LIBRARY, COST, num_envs=4)
    starts: list[dict[str, object]] = [{}, {"prefix": plan[:2]}]
    starts += [{"random_steps": 3, "seed": 5}, {"random_steps": 3, "seed": 5}]
    env.reset([0, 1, 2, 3], starts)
    assert env.steps(0) == []
    assert env.steps(1) == plan[:2]
    assert len(env.steps(2)) == 3
    assert env.steps(2) == env.steps(3)
    outcome = env.outcomes()
    assert (outcome[:, COLUMNS["initial_us"]] == outcome[0, COLUMNS["cost_after_us"]]).all()
    assert (outcome[:, COLUMNS["best_us"]] == outcome[:, COLUMNS["cost_after_us"]]).all()


def test_a_graph_that_was_seen_is_recognised() -> None:
    text = "graph (x: f32[4,4]) { y = Gelu(x) return y }"
    env = make(1, [text], has_macros=False)
    visited = FEATURES["candidate"].index("is_visited")
    for _ in range(12):
        arrays = observe(env)
        known = np.flatnonzero(arrays["candidates"][:, visited])
        if len(known):
            outcome = env.step([int(known[0])])[0]
            assert outcome[COLUMNS["is_visited"]] == 1
            return
        outcome = env.step([0])[0]
        assert outcome[COLUMNS["is_visited"]] == 0
    pytest.fail("unfolding and recognising GELU leads back")


def test_stop_ends_an_episode_and_a_finished_one_stands_still() -> None:
    env = make(2)
    count = int(num_candidates(observe(env))[0])
    outcome = env.step([count, 0])
    assert outcome[0, COLUMNS["terminated"]] == 1
    assert env.steps(0) == []
    again = env.step([0, 0])
    assert (again[0] == outcome[0]).all()
    assert len(env.steps(1)) >= 2


def test_observation_is_what_the_graph_says() -> None:
    env = make(1, [TWINS])
    arrays = observe(env)
    graph = env.graph(0)
    order = graph.topological_order()
    ops = [each["name"] for each in _C.ops()]
    assert [ops[i] for i in arrays["ops"]] == [graph.node(i)["op"] for i in order]
    edges = {
        (order.index(value[0]), row)
        for row, node in enumerate(order)
        for value in graph.node(node)["inputs"]
        if value is not None
    }
    assert set(map(tuple, arrays["edge_index"].T.tolist())) == edges
    share = FEATURES["node"].index("cost_share")
    assert arrays["nodes"][:, share].sum() == pytest.approx(1, abs=1e-5)
    assert arrays["globals"][0, :2].tolist() == [1, 1]
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert arrays["matched_offsets"][-1] == len(arrays["matched"])


def test_features_have_names_and_a_hash() -> None:
    names = _C.feature_columns()
    assert len(set(names)) == len(names)
    # A golden value: agents are trained on these columns and operators in this order.
    order = repr((names, [op["name"] for op in _C.ops()]))
    assert hashlib.sha256(order.encode()).hexdigest()[:16] == "d8e8e1f94e18cb26"


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"graph": 7}, "3 graphs"),
        ({"prefix": [("nothing", 0)]}, "no substitution 'nothing'"),
        ({"prefix": [("fuse_conv_relu", 99)]}, "step 1 of the start does not apply"),
        ({"walk": 3}, "not 'walk'"),
    ],
)
def test_wrong_starts_are_refused(start: dict[str, object], message: str) -> None:
    env = make(1)
    with pytest.raises(EnvError, match=message):
        env.reset([0], [start])


def test_wrong_calls_are_refused() -> None:
    env = make(2)
    with pytest.raises(EnvError, match="one action for each"):
        env.step([0])
    with pytest.raises(EnvError, match="different numbers"):
        env.reset([0, 0], [{}, {}])
    with pytest.raises(EnvError, match="no episode 2"):
        env.graph(2)
    arrays = allocate(env.sizes())
    with pytest.raises(EnvError, match="no array 'ops'"):
        env.observe({name: array for name, array in arrays.items() if name != "ops"})
    with pytest.raises(EnvError, match="'nodes' has another dtype"):
        env.observe({**arrays, "nodes": arrays["nodes"].astype(np.float64)})
    with pytest.raises(EnvError, match="items where"):
        env.observe({**arrays, "nodes": arrays["nodes"][:-1]})
    with pytest.raises(EnvError, match="at least one graph"):
        _C.VecRewriteEnv([], LIBRARY, COST)
    fresh = _C.VecRewriteEnv([_C.parse_graph(BLOCK)], LIBRARY, COST, num_envs=2)
    with pytest.raises(EnvError, match="before the first"):
        fresh.step([0, 0])
    with pytest.raises(EnvError, match="reset"):
        fresh.copy(0, 1)
    for source, target in ((-1, 0), (0, 2), (5, 1)):
        with pytest.raises(EnvError, match="below 2"):
            env.copy(source, target)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_threads_of_python_share_an_environment(num_threads: int) -> None:
    # Each call is one at a time: what they do to each other is that sizes change between two calls.
    env = make(4, num_threads=num_threads)

    def play(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(60):
            env.step([generator.randrange(4) for _ in range(4)])
            env.copy(generator.randrange(4), generator.randrange(4))
            env.reset([seed], [{"graph": seed, "random_steps": 2, "seed": seed}])
            with contextlib.suppress(EnvError):
                env.observe(allocate(env.sizes()))
            env.graph(seed).check()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(play, range(3)))


def test_threads_of_python_share_a_state() -> None:
    state = _C.RewriteState(_C.parse_graph(ATTENTION), LIBRARY, COST)

    def play(_: int) -> None:
        for _ in range(20):
            for candidate in state.candidates()[:1]:
                with contextlib.suppress(IndexError):  # somebody else took the last of its matches
                    state.step(candidate["substitution"], candidate["location"])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(play, range(3)))
    state.graph.check()


def test_there_are_no_more_threads_than_episodes() -> None:
    # A thread and a copy of each graph for each: no machine has as many.
    make(2, num_threads=1_000_000).step([0, 0])


def test_a_branch_is_a_copy_and_a_step() -> None:
    env = make(6, num_threads=1)
    hashes = env.hashes_after(0)
    assert len(hashes) == num_candidates(observe(env))[0]
    before = env.hash(0)
    outcomes = env.branch([0, 0], [2, 4], [1, 2])
    assert [env.hash(slot) for slot in (2, 4)] == [hashes[1], hashes[2]]
    assert env.hash(0) == before
    env.copy(0, 3)
    assert [env.hash(3), env.steps(3)] == [before, env.steps(0)]
    assert (env.outcomes()[3] == env.outcomes()[0]).all()
    stepped = env.step([-1, -1, -1, 1, -1, -1])
    assert (env.hash(3), env.steps(3)) == (env.hash(2), env.steps(2))
    assert (stepped[3] == outcomes[0]).all()


@pytest.mark.parametrize(
    ("sources", "targets", "actions", "message"),
    [
        ([0], [1, 2], [0], "one source and one action"),
        ([0, 0], [1, 1], [0, 0], "named twice"),
        ([0, 1], [1, 2], [0, 0], "is a source"),
        ([0], [9], [0], "no episode 9"),
        ([0], [1], [10_000], "not one numbered 10000"),
        ([0], [1], [-1], "not one numbered -1"),
        ([0, 0], [1, 2], [1, 10_000], "not one numbered 10000"),
    ],
)
def test_wrong_branches_are_refused(
    sources: list[int], targets: list[int], actions: list[int], message: str
) -> None:
    env = make(3)
    before = [env.hash(slot) for slot in range(3)]
    with pytest.raises(EnvError, match=message):
        env.branch(sources, targets, actions)
    assert [env.hash(slot) for slot in range(3)] == before
