"""Reductions, pools, resizing, normalisations: csrc/tools/reference/{reduction,pool,normalisation}.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from tests.core.core_calls import assert_equal, evaluate, infer, onnx_shapes, onnx_value, random
from torchrlopt.errors import ModelFormatError

Array = NDArray[Any]

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, **kw: np.sum(np.abs(x), **kw),
    "ReduceL2": lambda x, **kw: np.sqrt(np.sum(x * x, **kw)),
    "ReduceLogSum": lambda x, **kw: np.log(np.sum(x, **kw)),
    "ReduceLogSumExp": lambda x, **kw: np.log(np.sum(np.exp(x), **kw)),
    "ReduceSumSquare": lambda x, **kw: np.sum(x * x, **kw),
}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axes", [[], [1], [-1, 0], [0, 1, 2]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_are_numpys(op: str, axes: list[int], keepdims: int) -> None:
    x = np.abs(random(2, 3, 4)) + 0.1
    expected = REDUCTIONS[op](x, axis=tuple(axes) or None, keepdims=bool(keepdims))
    assert_equal(evaluate(op, x, axes=axes, keepdims=keepdims)[0], expected)


@pytest.mark.parametrize(
    ("op", "value"), [("ReduceSum", 0.0), ("ReduceProd", 1.0), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)]
)
def test_an_empty_reduction_gives_the_neutral_element(op: str, value: float) -> None:
    assert_equal(evaluate(op, np.zeros((2, 0)), axes=[1], keepdims=0)[0], np.full(2, value))


def test_large_exponents_do_not_overflow() -> None:
    x = np.array([[1000.0, 999.0], [-1000.0, -1001.0]])
    assert_equal(evaluate("ReduceLogSumExp", x, axes=[1])[0], np.logaddexp(x[:, :1], x[:, 1:]))
    assert_equal(evaluate("Softmax", x)[0], torch.from_numpy(x).softmax(-1).numpy())
    assert_equal(evaluate("LogSoftmax", x)[0], torch.from_numpy(x).log_softmax(-1).numpy())


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("last", [0, 1])
def test_arg_reductions_are_onnxs(op: str, axis: int, last: int) -> None:
    x = np.array([[1.0, 3.0, 3.0, -2.0], [1.0, 0.0, 3.0, -2.0]])
    attrs = {"axis": axis, "select_last_index": last, "keepdims": 1 - last}
    assert_equal(evaluate(op, x, **attrs)[0], onnx_value(op, x, **attrs)[0])


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("axis", "k"), [(-1, 3), (0, 1), (1, 0)])
def test_top_k(largest: int, axis: int, k: int) -> None:
    x = np.array([[1.0, 3.0, 3.0, -2.0], [5.0, 0.0, 3.0, 7.0]])
    order = np.argsort(-x if largest else x, axis=axis, kind="stable").take(range(k), axis=axis)
    values, indices = evaluate("TopK", x, k=k, axis=axis, largest=largest)
    assert_equal(indices, order)
    assert_equal(values, np.take_along_axis(x, order, axis))


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(exclusive: int, reverse: int) -> None:
    x = random(2, 5)
    line = x[:, ::-1] if reverse else x
    sums = np.cumsum(line, axis=1) - (line if exclusive else 0)
    actual = evaluate("CumSum", x, axis=-1, exclusive=exclusive, reverse=reverse)[0]
    assert_equal(actual, sums[:, ::-1] if reverse else sums)


POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7), {"kernel_shape": [3]}),
    ((1, 2, 6, 7), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 2, 6, 7), {"kernel_shape": [2, 2], "strides": [3, 2], "ceil_mode": 1}),
    ((1, 2, 5, 5), {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((1, 2, 8, 9), {"kernel_shape": [2, 3], "dilations": [3, 2]}),
    ((1, 1, 4, 5, 6), {"kernel_shape": [2, 3, 1], "strides": [2, 1, 3]}),
]


@pytest.mark.parametrize(("shape", "attrs"), POOLS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools_are_torchs(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    x = random(*shape)
    rank = len(shape) - 2
    actual = evaluate(op, x, **attrs)[0]
    assert onnx_shapes(op, x, **attrs) == [actual.shape]
    pads = attrs.get("pads", [0] * 2 * rank)
    args = (torch.from_numpy(x), attrs["kernel_shape"], attrs.get("strides", 1), pads[:rank])
    ceil = bool(attrs.get("ceil_mode", 0))
    if op == "MaxPool":
        pool = [F.max_pool1d, F.max_pool2d, F.max_pool3d][rank - 1]
        assert_equal(actual, pool(*args, attrs.get("dilations", 1), ceil).numpy())
    elif "dilations" not in attrs:
        pool = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][rank - 1]
        for include in (False, True):
            counted = evaluate(op, x, count_include_pad=int(include), **attrs)[0]
            assert_equal(counted, pool(*args, ceil, include).numpy())
    else:
        assert_equal(actual, onnx_value(op, x, **attrs)[0])


def test_asymmetric_pads_of_pools_are_onnxs() -> None:
    x = random(1, 2, 5, 6)
    attrs = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [0, 1, 2, 0]}
    for op, more in (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1})):
        assert_equal(evaluate(op, x, **attrs, **more)[0], onnx_value(op, x, **attrs, **more)[0])


def test_global_pools() -> None:
    x = random(2, 3, 4, 5)
    assert_equal(evaluate("GlobalAveragePool", x)[0], x.mean(axis=(2, 3), keepdims=True))
    assert_equal(evaluate("GlobalMaxPool", x)[0], x.max(axis=(2, 3), keepdims=True))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    "coordinates",
    ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"],
)
@pytest.mark.parametrize("sizes", [[1, 2, 8, 10], [1, 2, 3, 3], [1, 2, 1, 5]])
def test_resize_to_sizes_is_onnxs(mode: str, coordinates: str, sizes: list[int]) -> None:
    x = random(1, 2, 4, 5)
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
    expected = onnx_value("Resize", x, None, None, np.array(sizes), **attrs)[0]
    assert_equal(evaluate("Resize", x, sizes=sizes, **attrs)[0], expected)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(8, 10), (3, 3), (5, 2)])
def test_cubic_resize_is_torchs(corners: bool, size: tuple[int, int]) -> None:
    x = random(1, 2, 4, 5)
    expected = F.interpolate(torch.from_numpy(x), size, mode="bicubic", align_corners=corners).numpy()
    mode = "align_corners" if corners else "half_pixel"
    attrs = {"mode": "cubic", "coordinate_transformation_mode": mode}
    assert_equal(evaluate("Resize", x, sizes=[1, 2, *size], **attrs)[0], expected)


@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("scales", [[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 0.5, 1.5]])
def test_resize_by_scales_is_onnxs(nearest: str, scales: list[float]) -> None:
    x = random(1, 2, 4, 5)
    attrs = {"nearest_mode": nearest, "coordinate_transformation_mode": "asymmetric"}
    expected = onnx_value("Resize", x, None, np.array(scales), **attrs)[0]
    assert_equal(evaluate("Resize", x, scales=scales, **attrs)[0], expected)


def test_resize_without_outside_is_onnxs() -> None:
    x = random(1, 1, 4, 5)
    attrs = {"mode": "linear", "exclude_outside": 1}
    expected = onnx_value("Resize", x, None, None, np.array([1, 1, 7, 9]), **attrs)[0]
    assert_equal(evaluate("Resize", x, sizes=[1, 1, 7, 9], **attrs)[0], expected)


def test_batch_normalization() -> None:
    x, scale, bias, mean = random(2, 3, 4), random(3), random(3, seed=1), random(3, seed=2)
    var = np.abs(random(3, seed=3))
    operands = [torch.from_numpy(array) for array in (x, mean, var, scale, bias)]
    expected = F.batch_norm(*operands, eps=0.01).numpy()
    assert_equal(evaluate("BatchNormalization", x, scale, bias, mean, var, epsilon=0.01)[0], expected)


@pytest.mark.parametrize("axis", [1, -1])
def test_layer_and_rms_normalization(axis: int) -> None:
    x = random(2, 3, 4)
    shape = x.shape[axis:]
    scale, bias = random(*shape, seed=1), random(*shape, seed=2)
    tensors = [torch.from_numpy(array) for array in (x, scale, bias)]
    expected = F.layer_norm(tensors[0], shape, tensors[1], tensors[2], eps=0.1).numpy()
    assert_equal(evaluate("LayerNormalization", x, scale, bias, axis=axis, epsilon=0.1)[0], expected)
    bare = F.layer_norm(tensors[0], shape, tensors[1], eps=0.1).numpy()
    assert_equal(evaluate("LayerNormalization", x, scale, axis=axis, epsilon=0.1)[0], bare)
    rms = F.rms_norm(tensors[0], shape, tensors[1], eps=0.1).numpy()
    assert_equal(evaluate("RMSNormalization", x, scale, axis=axis, epsilon=0.1)[0], rms)


def test_instance_and_group_normalization() -> None:
    x, scale, bias = random(2, 6, 3, 2), random(6, seed=1), random(6, seed=2)
    tensors = [torch.from_numpy(array) for array in (x, scale, bias)]
    grouped = F.group_norm(tensors[0], 3, tensors[1], tensors[2], eps=0.1).numpy()
    assert_equal(evaluate("GroupNormalization", x, scale, bias, num_groups=3, epsilon=0.1)[0], grouped)
    single = F.instance_norm(tensors[0], weight=tensors[1], bias=tensors[2], eps=0.1).numpy()
    assert_equal(evaluate("InstanceNormalization", x, scale, bias, epsilon=0.1)[0], single)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_normalization(size: int) -> None:
    x = random(2, 4, 3, 2)
    squares = np.stack(
        [
            np.sum(x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2, axis=1)
            for c in range(x.shape[1])
        ],
        axis=1,
    )
    expected = x / (2.0 + 0.5 / size * squares) ** 0.75
    assert_equal(evaluate("LRN", x, size=size, alpha=0.5, bias=2.0)[0], expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_normalisations_along_an_axis(axis: int) -> None:
    x = random(2, 3, 4)
    x[0, :, 0] = 0
    tensor = torch.from_numpy(x)
    assert_equal(evaluate("Softmax", x, axis=axis)[0], tensor.softmax(axis).numpy())
    assert_equal(evaluate("LogSoftmax", x, axis=axis)[0], tensor.log_softmax(axis).numpy())
    assert_equal(evaluate("Hardmax", x, axis=axis)[0], onnx_value("Hardmax", x, axis=axis)[0])
    assert_equal(evaluate("LpNormalization", x, axis=axis)[0], F.normalize(tensor, dim=axis).numpy())
    assert_equal(evaluate("LpNormalization", x, axis=axis, p=1)[0], F.normalize(tensor, 1.0, axis).numpy())


@pytest.mark.parametrize(
    ("op", "types", "attrs", "message"),
    [
        ("ReduceSum", ["f32[2,3]"], {"axes": [2]}, "axis of a tensor of rank 2"),
        ("ReduceSum", ["f32[2,3]"], {"axes": [1, -1]}, "distinct axes"),
        ("ReduceSum", ["f32[2,3]"], {"keepdims": 2}, "keepdims of 0 or 1"),
        ("ReduceMean", ["i64[2,3]"], {}, "floating"),
        ("ArgMax", ["f32[0,3]"], {}, "non-empty axis"),
        ("TopK", ["f32[2,3]"], {"k": 4}, "k of at most 3"),
        ("CumSum", ["f32[2,3]"], {"axis": 2}, "axis of a tensor"),
        ("MaxPool", ["f32[1,2,5,5]"], {"kernel_shape": [3]}, "2 positive kernel sizes"),
        ("MaxPool", ["f32[1,2,5,5]"], {"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}, "below the window"),
        ("MaxPool", ["f32[1,2,2,5]"], {"kernel_shape": [3, 3]}, "within the padded input"),
        ("AveragePool", ["f32[1,2]"], {"kernel_shape": []}, "rank 3 to 5"),
        ("GlobalMaxPool", ["f32[1,2]"], {}, "rank 3 to 64"),
        ("Resize", ["f32[1,2]"], {}, "either sizes or scales"),
        ("Resize", ["f32[1,2]"], {"scales": [2.0]}, "one size or scale per dim"),
        ("Resize", ["f32[1,2]"], {"scales": [2.0, -1.0]}, "positive scales"),
        ("BatchNormalization", ["f32[1,3,2]"] + ["f32[3]"] * 3 + ["f32[2]"], {}, r"shape \[3\]"),
        ("BatchNormalization", ["f32[3]"] + ["f32[3]"] * 4, {}, "rank 2 to 64"),
        ("LayerNormalization", ["f32[2,3]", "f32[2,1]"], {}, r"broadcasts to \[3\]"),
        (
            "GroupNormalization",
            ["f32[2,6,3]", "f32[6]", "f32[6]"],
            {"num_groups": 4},
            "num_groups that",
        ),
        ("LpNormalization", ["f32[2,3]"], {"p": 3}, "p of 1 or 2"),
        ("LRN", ["f32[2,3,4]"], {"size": 0}, "positive size"),
        ("Softmax", ["f32[2,3]"], {"axis": -3}, "axis of a tensor"),
        ("Softmax", ["i64[2,3]"], {}, "floating"),
    ],
)
def test_refusals(op: str, types: list[str], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=f"^{op}: expected .*{message}.*, got "):
        infer(op, *types, **attrs)


def test_what_resize_cannot_do_is_refused() -> None:
    x = random(1, 1, 4, 4)
    with pytest.raises(ModelFormatError, match="antialias"):
        evaluate("Resize", x, sizes=[1, 1, 2, 2], mode="linear", antialias=1)
    with pytest.raises(ModelFormatError, match="coordinate_transformation_mode"):
        evaluate("Resize", x, sizes=[1, 1, 2, 2], coordinate_transformation_mode="tf_crop_and_resize")
    with pytest.raises(ModelFormatError, match="nearest_mode"):
        evaluate("Resize", x, sizes=[1, 1, 2, 2], nearest_mode="middle")
