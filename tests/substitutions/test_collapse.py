"""What the substitutions achieve together: greedy search on small graphs, in the form of real exports.

A graph stands for the pattern of a model family; the assertion states what must be left of it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from torchrlopt import _C
from torchrlopt.substitutions import load_library

LIBRARY = load_library()
MOVES_DATA = {"Input", "Reshape", "Transpose", "Split", "Squeeze", "Unsqueeze", "Slice", "Concat"}


def optimise(text: str) -> Counter[str]:
    """Operators left by greedy search, without expressions over weights and without views."""
    result = _C.search(_C.parse_graph(text), LIBRARY, _C.CostModel(), searcher="greedy", budget_ms=30_000)
    graph = result["graph"]
    graph.check()
    nodes = [graph.node(i) for i in graph.topological_order()]
    return Counter(node["op"] for node in nodes if not node["is_static"] and node["op"] not in MOVES_DATA)


NORMS = "".join(f", %s{i}: f32[8], %o{i}: f32[8], %m{i}: f32[8], %v{i}: f32[8]" for i in range(4))

REPVGG = f"""
graph (x: f32[1,8,14,14], %w0: f32[8,8,3,3], %w1: f32[8,8,1,1]{NORMS}) {{
  a = Conv(x, %w0; strides=[1,1], pads=[1,1,1,1], dilations=[1,1])
  b = BatchNormalization(a, %s0, %o0, %m0, %v0; epsilon=0.001)
  c = Conv(x, %w1; strides=[1,1], pads=[0,0,0,0], dilations=[1,1])
  d = BatchNormalization(c, %s1, %o1, %m1, %v1)
  e = Add(b, d)
  f = BatchNormalization(x, %s2, %o2, %m2, %v2)
  g = Add(e, f)
  y = Relu(g)
  return y
}}"""

REPVGG_STRIDED = f"""
graph (x: f32[1,8,14,14], %w0: f32[8,8,3,3], %w1: f32[8,8,1,1]{NORMS}) {{
  a = Conv(x, %w0; strides=[2,2], pads=[1,1,1,1])
  b = BatchNormalization(a, %s0, %o0, %m0, %v0)
  c = Conv(x, %w1; strides=[2,2])
  d = BatchNormalization(c, %s1, %o1, %m1, %v1)
  e = Add(b, d)
  y = Relu(e)
  return y
}}"""

MOBILEONE_DEPTHWISE = f"""
graph (x: f32[1,8,14,14], %w0: f32[8,1,3,3], %w1: f32[8,1,1,1], %w2: f32[8,1,3,3]{NORMS}) {{
  zero: f32[] = Constant(; value=[0.0])
  i = BatchNormalization(x, %s2, %o2, %m2, %v2)
  j = Add(zero, i)
  c = Conv(x, %w1; group=8)
  d = BatchNormalization(c, %s1, %o1, %m1, %v1)
  e = Add(j, d)
  a = Conv(x, %w0; pads=[1,1,1,1], group=8)
  b = BatchNormalization(a, %s0, %o0, %m0, %v0)
  f = Add(e, b)
  g = Conv(x, %w2; pads=[1,1,1,1], group=8)
  h = BatchNormalization(g, %s3, %o3, %m3, %v3)
  k = Add(f, h)
  y = Relu(k)
  return y
}}"""

ATTENTION_INPUTS = """
graph (x: f32[1,16,64], %q: f32[64,64], %k: f32[16,64], %v: f32[16,64],
       %a: f32[64], %b: f32[16], %c: f32[16]) {
  qt = Transpose(%q; perm=[1,0])
  kt = Transpose(%k; perm=[1,0])
  vt = Transpose(%v; perm=[1,0])
  qm = MatMul(x, qt)
  km = MatMul(x, kt)
  vm = MatMul(x, vt)
  qa = Add(qm, %a)
  ka = Add(km, %b)
  va = Add(vm, %c)
  return qa, ka, va
}"""

LORA = """
graph (x: f32[1,16,64], %w: f32[64,64], %b: f32[64], %d: f32[4,64], %u: f32[64,4]) {
  wt = Transpose(%w; perm=[1,0])
  m = MatMul(x, wt)
  l = Add(m, %b)
  dt = Transpose(%d; perm=[1,0])
  e = MatMul(x, dt)
  ut = Transpose(%u; perm=[1,0])
  f = MatMul(e, ut)
  two: f32[] = Constant(; value=[2.0])
  g = Mul(f, two)
  y = Add(l, g)
  return y
}"""

LINEAR_ATTENTION = """
graph (q: f32[1,4,512,16], k: f32[1,4,512,16], v: f32[1,4,512,16]) {
  kt = Transpose(k; perm=[0,1,3,2])
  s = MatMul(q, kt)
  y = MatMul(s, v)
  return y
}"""

RMSNORM = """
graph (x: f32[2,16,64], %g: f32[64]) {
  two: f32[] = Constant(; value=[2.0])
  eps: f32[] = Constant(; value=[1e-06])
  s = Pow(x, two)
  v = ReduceMean(s; axes=[2])
  e = Add(v, eps)
  d = Sqrt(e)
  r = Reciprocal(d)
  n = Mul(x, r)
  y = Mul(%g, n)
  return y
}"""


def experts(count: int) -> str:
    """A mixture in a loop: soft gates, experts of two layers, a running sum that begins at zero."""
    weights = "".join(
        f", %u{i}: f32[64,32], %p{i}: f32[64], %d{i}: f32[32,64], %r{i}: f32[32]" for i in range(count)
    )
    lines = [
        f"graph (x: f32[1,16,32], %g: f32[{count},32]{weights}) {{",
        "  gt = Transpose(%g; perm=[1,0])",
        "  gm = MatMul(x, gt)",
        "  gate = Softmax(gm)",
        "  s: f32[] = Constant(; value=[0.0])",
    ]
    for i in range(count):
        lines += [
            f"  g{i} = Slice(gate; axes=[2], starts=[{i}], ends=[{i + 1}], steps=[1])",
            f"  ut{i} = Transpose(%u{i}; perm=[1,0])",
            f"  um{i} = MatMul(x, ut{i})",
            f"  ua{i} = Add(um{i}, %p{i})",
            f"  h{i} = Gelu(ua{i})",
            f"  dt{i} = Transpose(%d{i}; perm=[1,0])",
            f"  dm{i} = MatMul(h{i}, dt{i})",
            f"  da{i} = Add(dm{i}, %r{i})",
            f"  o{i} = Mul(g{i}, da{i})",
            f"  s{i} = Add({'s' if i == 0 else f's{i - 1}'}, o{i})",
        ]
    return "\n".join([*lines, f"  return s{count - 1}", "}"])


def heads(count: int) -> str:
    """Attention heads in a loop, each with its own three matrices."""
    weights = "".join(f", %q{i}: f32[8,32], %k{i}: f32[8,32], %v{i}: f32[8,32]" for i in range(count))
    lines = [f"graph (x: f32[1,16,32]{weights}) {{", "  scale: f32[] = Constant(; value=[2.5])"]
    for i in range(count):
        for name in "qkv":
            lines.append(f"  {name}t{i} = Transpose(%{name}{i}; perm=[1,0])")
            lines.append(f"  {name}m{i} = MatMul(x, {name}t{i})")
        lines += [
            f"  r{i} = Transpose(km{i}; perm=[0,2,1])",
            f"  s{i} = MatMul(qm{i}, r{i})",
            f"  d{i} = Div(s{i}, scale)",
            f"  p{i} = Softmax(d{i})",
            f"  o{i} = MatMul(p{i}, vm{i})",
        ]
    joined = ", ".join(f"o{i}" for i in range(count))
    return "\n".join([*lines, f"  y = Concat({joined}; axis=2)", "  return y", "}"])


def ensemble(count: int) -> str:
    """Networks of two layers on one input, stacked."""
    weights = "".join(
        f", %a{i}: f32[64,32], %p{i}: f32[64], %b{i}: f32[8,64], %r{i}: f32[8]" for i in range(count)
    )
    lines = [f"graph (x: f32[16,32]{weights}) {{"]
    for i in range(count):
        lines += [
            f"  h{i} = Gemm(x, %a{i}, %p{i}; transB=1)",
            f"  c{i} = Relu(h{i})",
            f"  o{i} = Gemm(c{i}, %b{i}, %r{i}; transB=1)",
            f"  u{i} = Unsqueeze(o{i}; axes=[0])",
        ]
    joined = ", ".join(f"u{i}" for i in range(count))
    return "\n".join([*lines, f"  y = Concat({joined}; axis=0)", "  return y", "}"])


CASES: dict[str, tuple[str, dict[str, int]]] = {
    "repvgg block": (REPVGG, {"FusedConv": 1}),
    "repvgg block with stride": (REPVGG_STRIDED, {"FusedConv": 1}),
    "mobileone depth-wise block": (MOBILEONE_DEPTHWISE, {"FusedConv": 1}),
    "query, key and value of unequal widths": (ATTENTION_INPUTS, {"FusedMatMul": 1}),
    "unmerged adapter": (LORA, {"FusedMatMul": 1}),
    "linear attention in quadratic order": (LINEAR_ATTENTION, {"MatMul": 2}),
    "rms norm in pieces": (RMSNORM, {"RMSNormalization": 1}),
    "mixture of experts": (experts(6), {"FusedMatMul": 4, "Softmax": 1, "Mul": 1}),
    "heads": (heads(5), {"FusedMatMul": 1, "Attention": 1}),
    "ensemble": (ensemble(5), {"FusedMatMul": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_collapses(case: str) -> None:
    text, expected = CASES[case]
    left = optimise(text)
    for operator, most in expected.items():
        assert left[operator] <= most, left
    assert set(left) <= set(expected), left


def test_products_are_taken_in_the_cheap_order() -> None:
    result = _C.search(_C.parse_graph(LINEAR_ATTENTION), LIBRARY, _C.CostModel(), searcher="greedy")
    graph = result["graph"]
    shapes = [graph.type((i, 0))[1] for i in graph.topological_order() if graph.node(i)["op"] == "MatMul"]
    assert [1, 4, 512, 512] not in shapes
    assert [1, 4, 16, 16] in shapes
