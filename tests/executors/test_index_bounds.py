"""Positions and divisors: which are always in range, and input bounds for the others."""

from __future__ import annotations

import math

import onnx
import onnx.parser
import onnx_ir
import pytest
import torch

from torchrlopt.executors.onnx_runtimes.index_bounds import are_within, bounds_of, out_of_range

INF = math.inf


def model_of(
    body: str, inputs: str = "float[10,4] x, int64[3] i", output: str = "float[3,4] y"
) -> onnx_ir.Model:
    text = f'<ir_version: 10, opset_import: ["": 22]> g ({inputs}) => ({output}) {{ {body} }}'
    proto = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    return onnx_ir.from_proto(proto)


def number(name: str, value: int) -> str:
    return f"{name} = Constant <value_int: int = {value}> () "


def level(name: str) -> str:
    """The first three floats of a value, and bounds."""
    bounds = "a = Constant <value_float: float = 0.0> () b = Constant <value_float: float = 9.0> ()"
    return f"{bounds} r = Constant <value_ints: ints = [0, 1, 2]> () v = Gather ({name}, r)"


# What the positions of ten rows are, and how the input is bounded for it.
IN_RANGE: dict[str, tuple[float, float] | None] = {
    "j = Identity (i)": (0, 9),
    f"{number('c', 2)} j = Add (i, c)": (-2, 7),
    f"{number('c', 2)} j = Add (c, i)": (-2, 7),
    f"{number('c', 2)} j = Sub (i, c)": (2, 11),
    f"{number('a', 0)} {number('b', 9)} j = Clip (i, a, b)": None,
    f"{number('a', 0)} {number('b', 9)} k = Max (i, a) j = Min (k, b)": None,
    f"{number('c', 10)} j = Mod (i, c)": None,
    f"{number('c', 0)} k = Equal (i, c) j = Cast <to = 7> (k)": None,
    f"{number('c', 0)} k = Less (i, c) {number('d', 4)} j = Where (k, d, i)": (0, 9),
    f"{number('c', 0)} k = Equal (i, c) m = Cast <to = 7> (k) {number('a', 0)} j = CumSum (m, a)": None,
    "f = Transpose (x) j = ArgMax <axis = 1, keepdims = 0> (f)": None,
    "j = Constant <value_ints: ints = [-1, 0, 9]> ()": None,
    f"{level('x')} c = Clip (v, a, b) j = Cast <to = 7> (c)": None,
    f"{level('x')} f = Cast <to = 1> (i) c = Clip (f, a, b) d = Sub (b, c) j = Cast <to = 6> (d)": None,
}


@pytest.mark.parametrize("positions", IN_RANGE)
def test_positions_that_are_in_range(positions: str) -> None:
    rows = "float[4,4] y" if "ArgMax" in positions else "float[3,4] y"
    model = model_of(f"{positions} y = Gather <axis = 0> (x, j)", output=rows)
    expected = IN_RANGE[positions]
    for raises_above in (False, True):
        assert not out_of_range(model, raises_above)
        assert dict(bounds_of(model, raises_above)) == ({} if expected is None else {"i": expected})


ZERO_TO_9 = "d = Clip (c, a, b) j = Cast <to = 7> (d)"
OUT_OF_RANGE = [
    f"{number('a', 0)} {number('b', 9)} k = Clip (i, a, b) {number('c', 1)} j = Sub (k, c)",  # -1 to 8
    "j = Mul (i, i)",
    "j = Neg (i)",
    "j = Add (i, i)",
    f"{number('c', 9)} j = Min (i, c)",
    f"{number('c', 2)} j = Div (i, c)",
    "k = Cast <to = 1> (i) j = Cast <to = 7> (k)",
    "j = Constant <value_ints: ints = [-11, 0, 9]> ()",
    "j = Constant <value_ints: ints = [0, 0, 10]> ()",
    # NaN passes all bounds.
    f"l = Log (x) {level('l')} c = Clip (v, a, b) j = Cast <to = 7> (c)",
    f"l = Log (x) {level('l')} c = Max (v, a) d = Min (c, b) j = Cast <to = 7> (d)",
    f"{level('x')} n = Sqrt (v) d = Max (a, n) j = Cast <to = 7> (d)",
    f"{level('x')} p = Constant <value = float {{inf}}> () m = Clip (v, p, p) c = Sub (m, m) {ZERO_TO_9}",
    # Beyond int64.
    f"{level('x')} h = Constant <value_float: float = 1e30> () c = Clip (v, a, h) j = Cast <to = 7> (c)",
    f"{level('x')} c = Max (v, a) j = Cast <to = 7> (c)",
]


@pytest.mark.parametrize("positions", OUT_OF_RANGE)
def test_positions_that_may_be_out_of_range(positions: str) -> None:
    model = model_of(f"{positions} y = Gather <axis = 0> (x, j)")
    for raises_above in (False, True):
        (node,) = out_of_range(model, raises_above)
        assert node.op_type == "Gather"


TOO_LARGE = [
    f"{number('a', 0)} {number('b', 10)} j = Clip (i, a, b)",
    f"{number('c', 0)} j = Max (i, c)",
    f"{number('c', 11)} j = Mod (i, c)",
]


@pytest.mark.parametrize("positions", TOO_LARGE)
def test_what_may_be_too_large_is_left_to_a_runtime_that_raises(positions: str) -> None:
    model = model_of(f"{positions} y = Gather <axis = 0> (x, j)")
    assert out_of_range(model, raises_above=False)
    assert not out_of_range(model, raises_above=True)


def test_one_hot_never_raises() -> None:
    values = "v = Constant <value_floats: floats = [0.0, 1.0]> ()"
    body = f"{number('c', 0)} j = Max (i, c) {number('d', 9)} {values}"
    model = model_of(f"{body} y = OneHot (j, d, v)", output="float[3,9] y")
    assert out_of_range(model, raises_above=True)
    direct = model_of(f"{body} y = OneHot (i, d, v)", output="float[3,9] y")
    assert not out_of_range(direct, raises_above=True)
    assert dict(bounds_of(direct, raises_above=True)) == {"i": (0, 8)}


def test_a_size_that_varies() -> None:
    model = model_of("y = Gather <axis = 0> (x, i)", inputs="float[N,4] x, int64[3] i")
    assert out_of_range(model, raises_above=False)
    assert not out_of_range(model, raises_above=True)
    assert dict(bounds_of(model, raises_above=True)) == {"i": (0, INF)}


def test_columns_have_bounds_of_their_own() -> None:
    inputs = "float[10,4] x, int64[3,1] i, int64[3,1] j"
    apart = model_of("k = Concat <axis = 1> (i, j) y = GatherND (x, k)", inputs, "float[3] y")
    assert not out_of_range(apart, raises_above=False)
    assert dict(bounds_of(apart, raises_above=False)) == {"i": (0, 9), "j": (0, 3)}
    together = model_of("y = GatherND (x, i)", "float[10,4] x, int64[3,2] i", "float[3] y")
    assert dict(bounds_of(together, raises_above=False)) == {"i": (0, 3)}


def test_what_reads_one_input_twice_takes_the_tighter_bounds() -> None:
    body = "a = Gather <axis = 0> (x, i) b = Gather <axis = 1> (x, i) c = ReduceSum (b) y = Add (a, c)"
    assert dict(bounds_of(model_of(body), raises_above=False)) == {"i": (0, 3)}


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_divisors(operator: str) -> None:
    def divided(body: str) -> onnx_ir.Model:
        return model_of(f"{body} y = {operator} (i, d)", "int64[3] i, int64[3] j", "int64[3] y")

    for body, fits in {
        number("d", 3): True,
        number("d", -2): True,
        number("d", 0): False,
        number("d", -1): False,
        "d = Constant <value_ints: ints = [2, 0, 1]> ()": False,
        "d = Mul (j, j)": False,
        f"{number('a', 1)} {number('b', 9)} d = Clip (j, a, b)": True,
        f"{number('a', 0)} {number('b', 9)} d = Clip (j, a, b)": False,
    }.items():
        assert bool(out_of_range(divided(body), raises_above=True)) is not fits, body
        assert not bounds_of(divided(body), raises_above=True)
    of_input = divided("d = Identity (j)")
    assert not out_of_range(of_input, raises_above=True)
    assert dict(bounds_of(of_input, raises_above=True)) == {"j": (1, INF)}
    small = model_of(
        f"{number('a', 0)} {number('b', 9)} c = Clip (i, a, b) {number('d', -1)} y = {operator} (c, d)",
        "int64[3] i",
        "int64[3] y",
    )
    assert not out_of_range(small, raises_above=True)
    floats = model_of("y = Div (i, j)", "float[3] i, float[3] j", "float[3] y")
    assert not out_of_range(floats, raises_above=True)


def test_elements_are_looked_at() -> None:
    at = torch.tensor([[0, 9], [3, 4]])
    assert are_within([at, at.float()], [(0, 9), None])
    assert not are_within([at], [(1, 9)])
    assert not are_within([at], [(0, 8)])
    assert are_within([at[:0]], [(0, -1)])
    assert are_within([torch.tensor(3)], [(3, 3)])
    assert not are_within([torch.tensor([2**32 + 3])], [(0, 9)])
