"""Random walks: incrementally updated matches equal a full match, and every graph on the way is valid."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError
from torchrlopt.substitutions import load_library

LIBRARY = load_library()

ATTENTION = """
graph (x: f32[1,16,32], %wq: f32[32,32], %wk: f32[32,32], %wv: f32[32,16], %bq: f32[32], %bk: f32[32],
       %wo: f32[16,32], %g: f32[32], %h: f32[32]) {
  n = LayerNormalization(x, %g, %h)
  q0 = MatMul(n, %wq)
  q = Add(q0, %bq)
  k0 = MatMul(n, %wk)
  k = Add(%bk, k0)
  v = MatMul(n, %wv)
  kt = Transpose(k; perm=[0,2,1])
  scale: f32[] = Constant(; value=[0.17677669529663687])
  s0 = MatMul(q, kt)
  s = Mul(s0, scale)
  p = Softmax(s)
  o = MatMul(p, v)
  m = MatMul(o, %wo)
  r = Add(x, m)
  t = Relu(r)
  i = Identity(t)
  return i
}
"""
BLOCK = """
graph (x: f32[1,8,10,10], %a: f32[8,8,3,3], %b: f32[8,8,1,1], %c: f32[4,8,1,1], %d: f32[6,8,1,1], %s: f32[8],
       %o: f32[8], %m: f32[8], %v: f32[8]) {
  p = Conv(x, %a; pads=[1,1,1,1])
  q = Conv(x, %b)
  u = BatchNormalization(x, %s, %o, %m, %v)
  t = Add(p, q)
  y = Add(t, u)
  z = Relu(y)
  e = Conv(z, %c)
  f = Conv(z, %d)
  g = Relu(e)
  h = Relu(f)
  k = Concat(g, h; axis=1)
  n = Transpose(k; perm=[0,2,3,1])
  w = Transpose(n; perm=[0,3,1,2])
  return w
}
"""


def matches(of: _C.MatchSet) -> list[tuple[object, ...]]:
    return [tuple(match.values()) for match in map(_hashable, of.matches(LIBRARY))]


def _hashable(match: dict[str, object]) -> dict[str, object]:
    nodes = match["nodes"]
    assert isinstance(nodes, list)
    return {**match, "nodes": tuple(nodes)}


@given(text=st.sampled_from([ATTENTION, BLOCK]), choices=st.lists(st.integers(0, 10**6), max_size=12))
@settings(max_examples=60)
def test_kept_matches_equal_a_full_match(text: str, choices: list[int]) -> None:
    graph = _C.parse_graph(text)
    kept = _C.MatchSet(graph, LIBRARY)
    for choice in choices:
        found = kept.matches(LIBRARY)
        if not found:
            break
        step = found[choice % len(found)]
        try:
            graph = LIBRARY.apply(graph, step["name"], step["location"])
        except SubstitutionError:
            continue
        graph.check()
        kept = kept.after(graph, LIBRARY)
        full = _C.MatchSet(graph, LIBRARY)
        assert matches(kept) == matches(full), graph.text()
        assert len(kept) == len(full)
