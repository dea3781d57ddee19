"""Random walks: an incrementally updated state equals a newly built one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_match_set import ATTENTION, BLOCK
from torchrlopt import _C
from torchrlopt.machine.cost import device_model
from torchrlopt.machine.profiling import walk as random_graphs
from torchrlopt.substitutions import load_library

LIBRARY = load_library()
COST = _C.CostModel()
HEADS = """
graph (x: f32[1,8,32], %a: f32[32,32], %b: f32[32,32], %c: f32[32,32], %d: f32[32,32], %e: f32[32],
       %f: f32[32]) {
  p = MatMul(x, %a)
  q = MatMul(x, %b)
  r = MatMul(p, %c)
  s = MatMul(q, %d)
  t = Add(r, %e)
  u = Add(s, %f)
  v = Relu(t)
  w = Relu(u)
  k = Concat(v, w; axis=2)
  y, z = Split(k; axis=2, sizes=[32,32])
  m = Add(y, p)
  n = Add(z, q)
  o = Add(m, n)
  return o, w
}
"""
# Products of two inputs with the same weights: their merges have expressions over weights in common.
SHARED = """
graph (x: f32[4,4], z: f32[4,4], %w1: f32[4,4], %w2: f32[4,4], %w3: f32[4,4], %b1: f32[4], %b2: f32[4]) {
  p = FusedMatMul(x, %w1)
  q = FusedMatMul(x, %w2)
  r = FusedMatMul(z, %w1, %b1)
  s = FusedMatMul(z, %w2, %b1)
  t = MatMul(x, %w3)
  u = MatMul(z, %w3)
  v = Add(t, %b2)
  w = Add(u, %b2)
  two: f32[] = Constant(; value=[2.0])
  m = Mul(t, two)
  n = Mul(u, two)
  return p, q, r, s, v, w, m, n
}
"""
# Steps that make constants, which others make too, and expressions that read them.
MADE = """
graph (x: f32[2,8,5,5], y: f32[4,8], %a: f32[8,8,1,1], %b: f32[8,8,1,1], %s: f32[8], %o: f32[8], %m: f32[8],
       %v: f32[8], %w: f32[8,8], %u: f32[8,8], %c: f32[8]) {
  p = Conv(x, %a)
  q = Conv(x, %b)
  r = BatchNormalization(p, %s, %o, %m, %v)
  t = BatchNormalization(q, %o, %s, %m, %v)
  e = Gemm(y, %w, %c; alpha=0.5, transB=1)
  f = Gemm(y, %u, %c; alpha=0.5, transB=1)
  return r, t, e, f
}
"""
# A constant that dies with its last reader, whichever that is.
READ = """
graph (x: f32[4], y: f32[4]) {
  one: f32[] = Constant(; value=[1.0])
  p = Mul(x, one)
  q = Mul(y, one)
  r = Relu(p)
  s = Relu(q)
  return r, s
}
"""
# Images of which convolutions read parts, and others do; such parts have a price on CUDA.
PARTS = """
graph (x: f32[1,8,6,6], %a: f32[8,8,1,1], %b: f32[8,8,1,1], %c: f32[8,8,3,3], %d: f32[8,8,3,3],
       %g: f32[8,1,3,3], %h: f32[8,1,3,3]) {
  p = Conv(x, %a)
  q = Conv(x, %b)
  r = Relu(p)
  s = Relu(q)
  t = Conv(r, %c; pads=[1,1,1,1])
  u = Conv(s, %d; pads=[1,1,1,1])
  v = Conv(x, %g; group=8, pads=[1,1,1,1])
  w = Conv(x, %h; group=8, pads=[1,1,1,1])
  k = Concat(t, u; axis=1)
  y, z = Split(k; axis=1, sizes=[8,8])
  m = Conv(y, %c)
  n = Relu(z)
  return v, w, m, n
}
"""
GRAPHS = [ATTENTION, BLOCK, HEADS, SHARED, MADE, READ, PARTS]
ON_CUDA = _C.CostModel(device_model("eager", "cuda", is_recorded=True))


def priced() -> _C.CostModel:
    """With measured prices for two thirds of what walks meet, also by what stands beside it."""
    plain, prices = _C.CostModel(), {}
    for text, seed in itertools.product(GRAPHS, range(8)):
        for graph in itertools.islice(random_graphs(_C.parse_graph(text), LIBRARY, seed), 12):
            for node in graph.topological_order():
                prices |= {key: key % 997 / 50 for key in plain.keys(graph, node) if key % 3}
    return _C.CostModel(prices=prices)


PRICED = priced()
choices_strategy = st.lists(st.integers(0, 10**6), max_size=12)


def facts(state: _C.RewriteState) -> dict[tuple[int, int, tuple[int, ...]], tuple[float, int]]:
    return {
        (each["substitution"], each["location"], tuple(each["nodes"])): (
            each["delta"]["time_us"],
            each["hash"],
        )
        for each in state.candidates()
    }


def walk(state: _C.RewriteState, choices: list[int]) -> float:
    """Takes steps; the sum of their deltas."""
    total = 0.0
    for choice in choices:
        candidates = state.candidates()
        if not candidates:
            break
        chosen = candidates[choice % len(candidates)]
        assert state.step(chosen["substitution"], chosen["location"])
        assert state.hash == chosen["hash"] % 2**64
        total += chosen["delta"]["time_us"]
    return total


@pytest.mark.parametrize("cost", [COST, PRICED, ON_CUDA], ids=["analytic", "measured", "cuda"])
@given(text=st.sampled_from(GRAPHS), choices=choices_strategy)
@settings(max_examples=60, deadline=None)
def test_kept_candidates_equal_fresh_ones(cost: _C.CostModel, text: str, choices: list[int]) -> None:
    state = _C.RewriteState(_C.parse_graph(text), LIBRARY, cost)
    before = state.metrics
    for choice in choices:
        total = walk(state, [choice])
        fresh = _C.RewriteState(state.graph, LIBRARY, cost)
        kept, expected = facts(state), facts(fresh)
        assert kept.keys() == expected.keys(), state.graph.text()
        for key, (delta, after) in expected.items():
            assert kept[key][0] == pytest.approx(delta, abs=1e-9), (LIBRARY.names[key[0]], state.graph.text())
            assert kept[key][1] == after, (LIBRARY.names[key[0]], state.graph.text())
        assert state.metrics["time_us"] - before["time_us"] == pytest.approx(total, abs=1e-9)
        before = state.metrics
        state.graph.check()
    assert state.metrics == pytest.approx(cost.total(state.graph), abs=1e-6)


@given(text=st.sampled_from(GRAPHS), first=choices_strategy, second=choices_strategy)
@settings(max_examples=100, deadline=None)
def test_equal_hashes_are_equal_graphs(text: str, first: list[int], second: list[int]) -> None:
    original = _C.parse_graph(text)
    seen: dict[int, int] = {}
    for choices in (first, second):
        state = _C.RewriteState(original, LIBRARY, COST)
        for choice in [None, *choices]:
            if choice is not None:
                walk(state, [choice])
            structure = state.graph.hash()
            assert seen.setdefault(state.hash, structure) == structure


def test_a_step_may_add_an_expression_that_another_candidate_would_add() -> None:
    """Both merges concatenate the same weights; behind the first one the second only reads what is there."""
    state = _C.RewriteState(_C.parse_graph(SHARED), LIBRARY, COST)
    names = ("merge_biased_linear_shared_input", "merge_linear_shared_input")
    offered = {LIBRARY.names[each["substitution"]]: each for each in state.candidates()}
    before = offered[names[1]]["hash"] - state.hash
    assert state.step(offered[names[0]]["substitution"], offered[names[0]]["location"])
    then = {LIBRARY.names[each["substitution"]]: each for each in state.candidates()}[names[1]]
    assert (then["hash"] - state.hash) % 2**64 != before % 2**64
    assert facts(state) == facts(_C.RewriteState(state.graph, LIBRARY, COST))
    assert state.step(then["substitution"], then["location"])
    assert state.hash == then["hash"] % 2**64
    assert state.graph.text().count("Concat(%w1, %w2; axis=1)") == 1


@pytest.mark.parametrize("length", range(20))
def test_a_candidate_may_add_an_expression_over_a_constant_that_it_adds(length: int) -> None:
    """What it would watch there is not in the graph; tables of nodes have room for some more, or none."""
    values = ["x", *(f"a{i}" for i in range(length))]
    chain = "".join(f"  {new} = Relu({old})\n" for old, new in itertools.pairwise(values))
    text = f"""graph (x: f32[1,8,8,8], %s: f32[8], %o: f32[8], %m: f32[8], %v: f32[8]) {{
{chain}  p = AveragePool({values[-1]}; kernel_shape=[2,2], strides=[2,2])
  y = BatchNormalization(p, %s, %o, %m, %v)
  return y
}}"""
    state = _C.RewriteState(_C.parse_graph(text), LIBRARY, COST)
    names = {LIBRARY.names[each["substitution"]] for each in state.candidates()}
    assert "fold_batchnorm_into_average_pool" in names
    assert facts(state) == facts(_C.RewriteState(state.graph, LIBRARY, COST))


def test_the_order_of_commuting_steps_does_not_matter() -> None:
    text = (
        "graph (x: f32[4]) { a = Relu(x) b = Relu(a) c = Neg(b) d = Neg(c) e = Relu(d) f = Relu(e) return f }"
    )
    names = ("remove_double_relu", "remove_double_neg")
    hashes = set()
    for order in (names, names[::-1]):
        state = _C.RewriteState(_C.parse_graph(text), LIBRARY, COST)
        for name in order:
            assert state.step(LIBRARY.find(name), 0)
        hashes.add(state.hash)
    assert len(hashes) == 1


def test_exact_only_offers_exact_substitutions_only() -> None:
    state = _C.RewriteState(_C.parse_graph(BLOCK), LIBRARY, COST, exact_only=True)
    assert all(LIBRARY.is_exact(LIBRARY.names[each["substitution"]]) for each in state.candidates())
