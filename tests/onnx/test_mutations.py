"""A rich model with damaged bytes: every file is either refused with an error of ours, or optimised.

A case is determined by its number alone; the id of a failing one reproduces it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnx.onnx_text import proto_of
from torchrlopt.compile import rewrite_file as rewriting
from torchrlopt.compile.check_file import FileCheck
from torchrlopt.compile.rewrite_file import rewrite_file
from torchrlopt.errors import RlOptError, UnsupportedError
from torchrlopt.onnx import answers, files
from torchrlopt.options import Options

CASES = 400
GROUP = 40

BODY = """g (float[N,3,8,8] x, bool c, int64[2] ids) => (float[N,4] y, float[2,4] e) <
  float[4] bias = {1,2,3,4}, float[4] scale = {1,1,2,2}, int64[1] one = {1}, int64[2] sizes = {-1,4},
  float[N,4,8,8] r
> {
  k = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, kernel)
  n = BatchNormalization <epsilon = 0.001> (k, scale, bias, bias, scale)
  r = Relu(n)
  p = GlobalAveragePool(r)
  f = Reshape(p, sizes)
  t = Transpose <perm = [1, 0]> (f)
  u = Transpose <perm = [1, 0]> (t)
  m = MatMul(u, matrix)
  b = Add(m, bias)
  q, s = Split <axis = 1, num_outputs = 2> (b)
  j = Concat <axis = 1> (q, s)
  h = f.F <alpha = 0.5> (j)
  o = my.Foo <text = "abc", many = [1, 2, 3], rate = 0.25> (h)
  v = If(c) <
    then_branch = one_ () => (float[N,4] a1) <float[4] w1 = {3,4,5,6}> { a1 = Mul(o, w1) },
    else_branch = two_ () => (float[N,4] a2) { a2 = Neg(o) }
  >
  y = Softmax <axis = -1> (v)
  e = Gather(matrix, ids)
}"""


def rich(folder: Path) -> bytes:
    """A model with several operators, a subgraph, a function and weights in another file; its bytes."""
    proto = proto_of(BODY, imports=', "my" : 1, "f" : 1')
    weights = np.arange(4 * 3 * 3 * 3, dtype=np.float32).reshape(4, 3, 3, 3) / 50
    proto.graph.initializer.append(numpy_helper.from_array(weights, "kernel"))
    outside = TensorProto(name="matrix", data_type=TensorProto.FLOAT, dims=(4, 4))
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "model.data"), ("offset", "8"), ("length", "64")):
        outside.external_data.add(key=key, value=value)
    proto.graph.initializer.append(outside)
    (folder / "model.data").write_bytes(np.linspace(-1, 1, 20, dtype=np.float32).tobytes())
    body = [helper.make_node("LeakyRelu", ["s"], ["l"]), helper.make_node("Mul", ["l", "s"], ["t"])]
    body[0].attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    imports = [helper.make_opsetid("", 23)]
    function = helper.make_function("f", "F", ["s"], ["t"], body, imports, ["alpha"])
    proto.functions.append(function)
    return proto.SerializeToString()


def damaged(content: bytes, seed: int) -> bytes:
    """Some bytes changed, cut out, doubled or set to what lengths and varints are sensitive to."""
    draw = random.Random(seed)
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        place = draw.randrange(len(data))
        size = draw.choice((1, 2, 8, 32))
        match draw.randrange(7):
            case 0:
                data[place] = draw.randrange(256)
            case 1:
                data[place] ^= 1 << draw.randrange(8)
            case 2:
                data[place] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 3:
                del data[place : place + size]
            case 4:
                data[place:place] = data[place : place + size]
            case 5:
                data[place : place + size] = draw.randbytes(size)
            case _:
                other = draw.randrange(len(data))
                data[place : place + size] = data[other : other + size]
    return bytes(data)


@pytest.fixture
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each case would take minutes; what happens without its answer is what is tested."""

    def refuse(*_: Any) -> Any:
        raise UnsupportedError("not asked")

    monkeypatch.setattr(answers, "run_limited", refuse)
    monkeypatch.setattr(rewriting, "check_apart", lambda *_, **__: FileCheck(None, ()))


def optimised(path: Path, target: Path) -> bool:
    """Whether a file was rewritten; False where it was refused by an error of ours."""
    options = Options(searcher="greedy", verify=False, cache=False, on_error="raise", budget_ms=50.0)
    try:
        rewrite_file(path, target, options)
    except RlOptError:
        return False
    files.load(target)  # whatever was written can be read
    return True


@pytest.mark.usefixtures("_no_process")
def test_the_sound_file_is_optimised(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(rich(tmp_path))
    assert optimised(tmp_path / "model.onnx", tmp_path / "out.onnx")


@pytest.mark.usefixtures("_no_process")
@pytest.mark.parametrize("group", range(CASES // GROUP))
def test_damaged_files_are_refused_or_optimised(group: int, tmp_path: Path) -> None:
    content = rich(tmp_path)
    path = tmp_path / "model.onnx"
    verdicts = []
    for seed in range(group * GROUP, (group + 1) * GROUP):
        path.write_bytes(damaged(content, seed))
        try:
            verdicts.append(optimised(path, tmp_path / "out.onnx"))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert set(verdicts) == {False, True}  # neither is everything refused, nor nothing damaged
