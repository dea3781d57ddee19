"""Files of all opsets, with subgraphs, free sizes and unsupported operators: rewritten, valid, correct.

Each is run in ONNX Runtime before and after. The cases follow public models: If bodies in a voice detector,
samplers in speech models, U-Nets and detectors with free sizes, exports older than opset 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.crosses import nightly_but
from tests.onnx.onnx_text import proto_of
from torchrlopt.api.optimise import optimise_onnx
from torchrlopt.compile import rewrite_file
from torchrlopt.errors import OptionsError, UnsupportedError
from torchrlopt.onnx.subgraphs import nested
from torchrlopt.report import Report

pytestmark = pytest.mark.usefixtures("checked_here")

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"

# What is in front of the operators in question, so that there is something to rewrite.
FRONT = """c = Conv <pads = [1, 1, 1, 1]> (x, cw)
  n = BatchNormalization (c, s, s, s, s)
  r = Relu (n)"""


def model(body: str, opset: int, imports: str = "") -> onnx.ModelProto:
    """A model from text in which FRONT stands for itself, with its weights."""
    proto = proto_of(body.replace("FRONT", FRONT), opset, imports)
    proto.ir_version = 8 if proto.functions else 7
    random = np.random.default_rng(0)
    names = {name for graph in nested(proto.graph) for node in graph.node for name in node.input}
    if "cw" in names:
        weight = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
        scale = random.random(8).astype(np.float32) + 0.5
        proto.graph.initializer.extend(
            [numpy_helper.from_array(weight, "cw"), numpy_helper.from_array(scale, "s")]
        )
    onnx.checker.check_model(proto)
    return proto


def ran(path: Path, feeds: Mapping[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def rewritten(
    proto: onnx.ModelProto, folder: Path, *all_feeds: Mapping[str, Any], **options: Any
) -> tuple[onnx.ModelProto, Report]:
    """The result, which has been found to compute the same in ONNX Runtime."""
    onnx.save(proto, folder / "in.onnx")
    fixed = {"on_error": "raise", "cache": False, "searcher": "greedy", "measure": False}
    report = optimise_onnx(folder / "in.onnx", folder / "out.onnx", **fixed | options)
    assert report.kept == "rewritten"
    result = onnx.load(folder / "out.onnx")
    onnx.checker.check_model(result, full_check=True)
    for feeds in all_feeds:
        for old, new in zip(ran(folder / "in.onnx", feeds), ran(folder / "out.onnx", feeds), strict=True):
            # float32 over at most 27 products: rounding is far below
            np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-4)
    return result, report


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


BODIES = """g (float[1,3,16,16] x, bool flag) => (float[1,8,1,1] y) {
  FRONT
  y = If (flag) <then_branch = one () => (float[1,8,1,1] p) { p = ReduceMean <axes = [2, 3]> (r) },
                 else_branch = two () => (float[1,8,1,1] q) { q = ReduceMax <axes = [2, 3]> (r) }>
}"""


@pytest.mark.parametrize("verify", [True, False])
def test_bodies_and_the_graph_around_have_one_opset(verify: bool, tmp_path: Path) -> None:
    feeds = [{"x": image(1, 3, 16, 16), "flag": np.array(flag)} for flag in (True, False)]
    result, _ = rewritten(model(BODIES, 16), tmp_path, *feeds, verify=verify)
    assert result.opset_import[0].version == 16
    assert result.ir_version == 7
    assert "BatchNormalization" not in {node.op_type for node in result.graph.node}


FUNCTION = """g (float[N,3,16,16] x, bool flag) => (float[N,8,1,1] y) {
  FRONT
  y = my.Mean (r)
}
<domain: "my", opset_import: ["" : 18]> Mean (x) => (y) {
  axes = Constant <value = int64[2] {2, 3}> ()
  y = ReduceMean (x, axes)
}"""


@pytest.mark.parametrize(
    ("body", "opset", "wanted"), [(BODIES, 11, 18), (BODIES, 16, 21), (FUNCTION, 18, 13), (FUNCTION, 18, 20)]
)
@pytest.mark.parametrize("is_better", [True, False])
def test_all_of_a_file_is_written_at_another_opset(
    body: str, opset: int, wanted: int, is_better: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite_file, "_is_better", lambda *args, **given: is_better)
    source = model(body, opset, ', "my" : 1' if body is FUNCTION else "")
    feeds = {"x": image(1, 3, 16, 16), "flag": np.array(True)}
    result, report = rewritten(source, tmp_path, feeds, opset=wanted, measure=True, measure_ms=1)
    assert [entry.version for entry in result.opset_import if not entry.domain] == [wanted]
    assert not result.functions
    assert f"converted to opset {wanted}" in report.notes
    assert result.graph.input == source.graph.input
    assert ("BatchNormalization" in {node.op_type for node in result.graph.node}) != is_better


def test_what_another_opset_does_not_have_is_refused(tmp_path: Path) -> None:
    proto = proto_of("g (int8[2] x) => (int8[2] y) { y = BitwiseNot (x) }", 18)
    onnx.save(proto, tmp_path / "in.onnx")
    for opset, kind, reason in (
        (17, UnsupportedError, "BitwiseNot"),
        (12, OptionsError, "13 to"),
        (99, OptionsError, "13 to"),
    ):
        with pytest.raises(kind, match=reason):
            optimise_onnx(tmp_path / "in.onnx", tmp_path / "out.onnx", opset=opset)
    assert not (tmp_path / "out.onnx").exists()


# Operators that ONNX Runtime has kernels of in the opset of the file, and none in later ones.
ALONE = {
    "RandomNormalLike": "z = RandomNormalLike <scale = 1e-12> (r) y = Add (r, z)",
    "RoiAlign": """b = Constant <value = float[1,4] {0, 0, 3, 1}> () i = Constant <value_ints = [0]> ()
        y = RoiAlign <output_height = 2, output_width = 2> (r, b, i)""",
    "Multinomial": """f = Flatten (r) z = Multinomial <sample_size = 1> (f) w = Cast <to = 1> (z)
        o = Constant <value_float = 0.0> () v = Mul (w, o) y = Add (f, v)""",
}


@pytest.mark.parametrize("name", ALONE)
def test_operators_that_are_left_alone_keep_their_version(name: str, tmp_path: Path) -> None:
    rank = "p,q" if name == "Multinomial" else "p,q,u,v"
    body = f"g (float[1,3,12,12] x) => (float[{rank}] y) {{ FRONT {ALONE[name]} }}"
    result, _ = rewritten(model(body, 15), tmp_path, {"x": image(1, 3, 12, 12)})
    assert result.opset_import[0].version == 15


U_NET = """g (float[batch,3,height,width] x) => (float[batch,8,h,w] y) <float[4] up = {1, 1, 2, 2}> {
  FRONT
  a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
  d = Relu (b)
  e = Relu (d)
  u = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (e, , up)
  k = Add (u, a)
  y = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (k, , up)
}"""


@pytest.mark.parametrize("opset", [11, 17, 23])
def test_free_sizes_that_have_to_halve_evenly(opset: int, tmp_path: Path) -> None:
    # The second operand was not optional before opset 13.
    proto = model(U_NET if opset >= 13 else U_NET.replace(", , up)", ", up, up)"), opset)
    result, report = rewritten(proto, tmp_path, {"x": image(2, 3, 24, 40)})
    assert result.opset_import[0].version == max(opset, 13)
    assert sum(node.op_type == "Relu" for node in result.graph.node) == 2
    assert ("converted to opset 13" in report.notes) == (opset < 13)


@pytest.mark.parametrize(
    "name", nightly_but(["light_squeezenet"], sorted(path.stem for path in LIGHT.glob("*.onnx")))
)
def test_the_light_models_of_the_standard(name: str, tmp_path: Path) -> None:
    """Opset 9, format 3: weights are inputs. Their weights are constants, so the outputs say little."""
    path = LIGHT / f"{name}.onnx"
    report = optimise_onnx(
        path, tmp_path / "out.onnx", on_error="raise", cache=False, searcher="greedy", measure=False
    )
    assert report.kept == "rewritten"
    proto = onnx.load(path)
    weights = {tensor.name for tensor in proto.graph.initializer}
    (x,) = (value for value in proto.graph.input if value.name not in weights)
    feeds = {x.name: image(*(dim.dim_value for dim in x.type.tensor_type.shape.dim))}
    for old, new in zip(ran(path, feeds), ran(tmp_path / "out.onnx", feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)


def test_a_file_that_is_valid_and_not_read_is_kept(tmp_path: Path) -> None:
    proto = proto_of("g (float[2] x) => (float[2] y) { y = Relu (x) }", 6)
    proto.ir_version = 3
    onnx.save(proto, tmp_path / "in.onnx")
    report = optimise_onnx(tmp_path / "in.onnx", tmp_path / "out.onnx", measure=False)
    assert report.kept == "original"
    assert "version of the ONNX operators" in str(report.fallback_reason)
    assert onnx.load(tmp_path / "out.onnx") == proto
