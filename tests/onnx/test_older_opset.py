"""Newer ONNX operators decomposed for an older opset: valid there, and the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from tests.onnx.onnx_text import proto_of
from torchrlopt.errors import UnsupportedError
from torchrlopt.onnx.older_opset import EXPANSIONS, lower_opset
from torchrlopt.onnx.opsets import FORM, NATIVE

BODIES = {
    "swish": "g (float[2, 3] x) => (float[2, 3] y) { y = Swish <alpha = 1.7> (x) }",
    "swish_plain": "g (float[N, 3] x) => (float[N, 3] y) { y = Swish (x) }",
    "rms": "g (float[2, 3, 4] x, float[4] w) => (float[2, 3, 4] y) { y = RMSNormalization (x, w) }",
    "rms_axes": """g (float[2, 3, 4] x, float[3, 4] w) => (float[2, 3, 4] y) {
        y = RMSNormalization <axis = 1, epsilon = 0.25> (x, w) }""",
    "rms_narrow": """g (float16[2, 3, 4] x, float16[4] w) => (float16[2, 3, 4] y) {
        y = RMSNormalization (x, w) }""",
    "rotary": """g (float[2, 3, 5, 8] x, float[2, 5, 4] c, float[2, 5, 4] s) => (float[2, 3, 5, 8] y) {
        y = RotaryEmbedding (x, c, s) }""",
    "rotary_interleaved": """g (float[2, 3, 5, 8] x, float[2, 5, 4] c, float[2, 5, 4] s)
        => (float[2, 3, 5, 8] y) { y = RotaryEmbedding <interleaved = 1> (x, c, s) }""",
    "rotary_part": """g (float[2, 5, 24] x, float[9, 2] c, float[9, 2] s, int64[2, 5] p)
        => (float[2, 5, 24] y) {
        y = RotaryEmbedding <num_heads = 3, rotary_embedding_dim = 4> (x, c, s, p) }""",
    "attention": """g (float[2, 3, 5, 4] q, float[2, 3, 6, 4] k, float[2, 3, 6, 7] v)
        => (float[2, 3, 5, 7] y) { y = Attention (q, k, v) }""",
    "attention_causal": """g (float[B, 3, S, 4] q, float[B, 3, S, 4] k, float[B, 3, S, 4] v)
        => (float[B, 3, S, 4] y) { y = Attention <is_causal = 1, scale = 0.3> (q, k, v) }""",
    "attention_grouped": """g (float[B, 4, S, 4] q, float[B, 2, S, 4] k, float[B, 2, S, 4] v)
        => (float[B, 4, S, 4] y) { y = Attention (q, k, v) }""",
    "attention_flat": """g (float[2, 5, 12] q, float[2, 6, 12] k, float[2, 6, 12] v, float[5, 6] m)
        => (float[2, 5, 12] y) { y = Attention <q_num_heads = 3, kv_num_heads = 3> (q, k, v, m) }""",
}
# What a runtime of opset 13 has to compute with still older operators.
OLD_BODIES = {
    "gelu": "g (float[2, 3] x) => (float[2, 3] y) { y = Gelu (x) }",
    "gelu_tanh": """g (float[2, 3] x) => (float[2, 3] y) { y = Gelu <approximate = "tanh"> (x) }""",
    "mish": "g (float[2, 3] x) => (float[2, 3] y) { y = Mish (x) }",
    "hard_swish": "g (float[2, 3] x) => (float[2, 3] y) { y = HardSwish (x) }",
    "layer": """g (float[2, 3, 4] x, float[4] w, float[4] b) => (float[2, 3, 4] y) {
        y = LayerNormalization (x, w, b) }""",
    "layer_axes": """g (float[N, 3, 4] x, float[3, 4] w) => (float[N, 3, 4] y) {
        y = LayerNormalization <axis = -2, epsilon = 0.25> (x, w) }""",
    "layer_narrow": """g (float16[2, 3, 4] x, float16[4] w) => (float16[2, 3, 4] y) {
        y = LayerNormalization (x, w) }""",
    "group": """g (float[N, 6, 4, 5] x, float[6] w, float[6] b) => (float[N, 6, 4, 5] y) {
        y = GroupNormalization <num_groups = 3> (x, w, b) }""",
    "group_1d": """g (float[N, 6, 4] x, float[6] w, float[6] b) => (float[N, 6, 4] y) {
        y = GroupNormalization <num_groups = 2, epsilon = 0.25> (x, w, b) }""",
    "reduce": """g (float[2, 3, 4] x) => (float[2, 1, 1] y) {
        a = Constant <value_ints = [1, -1]> () y = ReduceL2 (x, a) }""",
    "grid": """g (float[1, 1, 4, 4] x, float[1, 2, 3, 2] p) => (float[1, 1, 2, 3] y) {
        y = GridSample <mode = "cubic"> (x, p) }""",
}  # fmt: skip
SIZES = {"B": 2, "S": 5, "N": 3}


def feeds_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    feeds = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value or SIZES[dim.dim_param] for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        whole = np.issubdtype(dtype, np.integer)
        feeds[value.name] = (random.integers(0, 9, shape) if whole else random.normal(size=shape)).astype(
            dtype
        )
    return feeds


def lowered(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    model = onnx_ir.from_proto(proto)
    lower_opset(model, opset)
    return onnx_ir.to_proto(model)


@pytest.mark.parametrize("opset", [18, 22, 23])
@pytest.mark.parametrize("body", BODIES)
def test_same_numbers_in_an_older_opset(body: str, opset: int) -> None:
    proto = proto_of(BODIES[body], opset=24)
    older = lowered(proto, opset)
    assert {entry.version for entry in older.opset_import} == {opset}
    onnx.checker.check_model(older, full_check=True)
    newer = {op for op in EXPANSIONS if not onnx.defs.has(op, opset)}
    assert not {node.op_type for node in older.graph.node} & newer
    feeds = feeds_of(proto)
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    (got,) = ReferenceEvaluator(older).run(None, feeds)
    tolerance = 2e-3 if expected.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    assert got.dtype == expected.dtype


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("body", BODIES | OLD_BODIES)
def test_same_numbers_in_the_oldest_opset_that_is_read(body: str, opset: int) -> None:
    """Against ONNX Runtime: the standard's own reference has no kernels of versions as old as that."""
    if body == "grid":
        opset = max(opset, 16)  # there was no such operator before
    proto = proto_of((BODIES | OLD_BODIES)[body], opset=24)
    older = lowered(proto, opset)
    assert {entry.version for entry in older.opset_import} == {opset}
    onnx.checker.check_model(older, full_check=True)
    feeds = feeds_of(proto)
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    session = onnxruntime.InferenceSession(older.SerializeToString(), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, feeds)
    # float16 keeps 11 bits, and a cubic is a sum of 16 products
    tolerance = 4e-3 if expected.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    assert got.dtype == expected.dtype


def test_nodes_that_have_the_older_form_stay() -> None:
    body = (
        "g (float[2, 3] x) => (float[2, 1] y, float[2, 3] z) { y = ReduceMax <axes = [1]> (x) z = Gelu (x) }"
    )
    model = onnx_ir.from_proto(proto_of(body, opset=13))
    for node in model.graph:
        node.meta[FORM] = 13 if node.op_type == "ReduceMax" else NATIVE
    lower_opset(model, 13)
    assert next(node.op_type for node in model.graph) == "ReduceMax"
    assert "Gelu" not in {node.op_type for node in model.graph}
    onnx.checker.check_model(onnx_ir.to_proto(model), full_check=True)


def test_bodies_are_lowered() -> None:
    proto = proto_of(
        """g (float[2, 4] x, bool flag) => (float[p, q] y) <int64[1] axes = {1}> {
            y = If (flag) <
              then_branch = one () => (float[2, 1] a) {
                s = Gelu (x) a = ReduceMax <noop_with_empty_axes = 0> (s, axes) },
              else_branch = two () => (float[2, 2] b) { b, c = Split <axis = 1, num_outputs = 2> (x) }>
        }""",
        opset=20,
    )  # fmt: skip
    for node in proto.graph.node[0].attribute[0].g.node[:1]:  # the exporter's types
        proto.graph.node[0].attribute[0].g.value_info.add(name=node.output[0]).type.CopyFrom(
            proto.graph.input[0].type
        )
    older = lowered(proto, 13)
    onnx.checker.check_model(older, full_check=True)
    assert not older.graph.initializer
    session = onnxruntime.InferenceSession(older.SerializeToString(), providers=["CPUExecutionProvider"])
    for flag in (True, False):
        feeds = {"x": np.random.default_rng(0).normal(size=(2, 4)).astype("f"), "flag": np.array(flag)}
        (expected,) = ReferenceEvaluator(proto).run(None, feeds)
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5)


def test_a_row_without_keys_gives_zeros() -> None:
    body = """g (float[1, 1, 2, 4] q, float[1, 1, 2, 4] k, float[1, 1, 2, 4] v, bool[2, 2] m)
        => (float[1, 1, 2, 4] y) { y = Attention (q, k, v, m) }"""
    older = lowered(proto_of(body), 22)
    feeds = feeds_of(older) | {"m": np.array([[False, False], [True, False]])}
    (got,) = ReferenceEvaluator(older).run(None, feeds)
    assert (got[0, 0, 0] == 0).all()
    np.testing.assert_allclose(got[0, 0, 1], feeds["v"][0, 0, 0], rtol=1e-6)


def test_what_the_opset_has_stays() -> None:
    proto = proto_of("g (float[2, 3] x) => (float[2, 3] y) { z = Gelu (x) \n y = Swish (z) }", opset=24)
    assert [node.op_type for node in lowered(proto, 24).graph.node] == ["Gelu", "Swish"]
    older = proto_of("g (float[2] x) => (float[2] y) { y = Relu (x) }", opset=17)
    assert {entry.version for entry in lowered(older, 22).opset_import} == {17}


@pytest.mark.parametrize(
    ("body", "opset", "reason"),
    [
        ("g (int8[2] x) => (int8[2] y) { y = BitwiseNot (x) }", 17, "newer than the opset.*BitwiseNot"),
        (
            "g (float[2, 2] x, int64[1] a) => (float[q, r] y) { y = ReduceMax (x, a) }",
            17,
            "input is newer.*up to 1",
        ),
        (
            """g (float[2, 2] x) => (float[2, 2] y) { y = Cast <to = 1, round_mode = "down"> (x) }""",
            22,
            "attribute is newer.*round_mode",
        ),
        (
            "g (float[5] x) => (float[3] y, float[2] z) { y, z = Split <num_outputs = 2> (x) }",
            17,
            "attribute is newer.*num_outputs",
        ),
        (
            """g (float[1, H, 2, 4] q, float[1, H, 2, 4] k, float[1, H, 2, 4] v) => (float[1, H, 2, 4] y) {
                y = Attention (q, k, v) }""",
            22,
            "size has to be known.*axis 1",
        ),
        (
            """g (float[1, 1, 2, 4] q, float[1, 1, 2, 4] k, float[1, 1, 2, 4] v, float[1, 1, 3, 4] pk,
                float[1, 1, 3, 4] pv) => (float[1, 1, 2, 4] y) { y = Attention (q, k, v, , pk, pv) }""",
            22,
            "past keys",
        ),
    ],
)
def test_refusals(body: str, opset: int, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        lowered(proto_of(body, opset=24), opset)
