"""Inputs for checking a file are valid for its operators."""

from __future__ import annotations

import pytest
import torch

from tests.onnx.onnx_text import model_of
from torchrlopt.executors.lowering.around import Around, lower_pair
from torchrlopt.executors.lowering.file_inputs import drawn
from torchrlopt.judge import right

BODIES = {
    "integer division": "g (int32[64] x, int32[64] y) => (int32[64] z) { z = Div(x, y) }",
    "remainder": "g (int64[64] x, int64[64] y) => (int64[64] z) { z = Mod(x, y) }",
    "divisor through others": """g (int64[64] x, int32[8,8] y) => (int64[64] z) {
        s = Constant<value_ints = [-1]>() w = Cast<to = 7>(y) v = Reshape(w, s) z = Div(x, v) }""",
    "target of a reshape": "g (float[2,3,4] x, int64[2] s) => (float[4,6] z) { z = Reshape(x, s) }",
    "target that is not declared": "g (float[2,3,4] x, int64[2] s) => (float[p,q] z) { z = Reshape(x, s) }",
    "target of an expansion": "g (float[3,1] x, int64[2] s) => (float[3,5] z) { z = Expand(x, s) }",
    "one short axis": "g (float[1,4] x, int64[9] i) => (float[9,4] z) { z = Gather(x, i) }",
    "depth": """g (int64[5] i, int64 d, float[2] v) => (float[5,k] z) { z = OneHot(i, d, v) }""",
    "depth as a float": "g (int64[5] i, float d, float[2] v) => (float[5,k] z) { z = OneHot(i, d, v) }",
    "parts": """g (float[2,7] x, int64[3] n) => (float[2,a] p, float[2,b] q, float[2,c] r) {
        p, q, r = Split <axis = 1> (x, n) }""",
    "range": "g (int64 a, int64 b, int64 c) => (int64[n] z) { z = Range(a, b, c) }",
}


def around_of(body: str) -> Around:
    return lower_pair(model_of(body), model_of(body))[0]


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("seed", range(3))
def test_the_model_runs(name: str, seed: int) -> None:
    around = around_of(BODIES[name])
    inputs = drawn(around.arguments, seed)
    standard = right.standard(around.module, around.module, inputs)
    assert standard.original, "there is something to compare"


def test_inputs_have_the_declared_types_and_a_seed() -> None:
    around = around_of("g (float16[2,3] x, bool[4] b, uint8[5] n) => (float16[2,3] z, bool[4] c, uint8[5] m) "
                       "{ z = Relu(x) c = Not(b) m = Identity(n) }")  # fmt: skip
    first, second, third = (drawn(around.arguments, seed) for seed in (0, 0, 1))
    assert [(x.dtype, tuple(x.shape)) for x in first] == [
        (torch.float16, (2, 3)), (torch.bool, (4,)), (torch.uint8, (5,)),
    ]  # fmt: skip
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[0], third[0])


def test_later_attempts_give_other_integers() -> None:
    around = around_of("g (int64[9] n) => (int64[9] m) { m = Neg(n) }")
    assert drawn(around.arguments, 0, 1)[0].unique().tolist() == [1]
    assert drawn(around.arguments, 0, 2)[0].unique().tolist() == [0]
