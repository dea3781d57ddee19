"""Reductions, pools, resizing and normalisations of the reference interpreter: csrc/tools/reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from tests.core.core_calls import assert_equal, evaluate, infer, random
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


def test_large_exponents_do_not_overflow() -> None:
    x = np.array([[1000.0, 999.0], [-1000.0, -1001.0]])
    assert_equal(evaluate("ReduceLogSumExp", x, axes=[1])[0], np.logaddexp(x[:, :1], x[:, 1:]))
    assert_equal(evaluate("Softmax", x)[0], torch.from_numpy(x).softmax(-1).numpy())
    assert_equal(evaluate("LogSoftmax", x)[0], torch.from_numpy(x).log_softmax(-1).numpy())


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(8, 10), (3, 3), (5, 2)])
def test_cubic_resize_is_torchs(corners: bool, size: tuple[int, int]) -> None:
    x = random(1, 2, 4, 5)
    expected = F.interpolate(torch.from_numpy(x), size, mode="bicubic", align_corners=corners).numpy()
    mode = "align_corners" if corners else "half_pixel"
    attrs = {"mode": "cubic", "coordinate_transformation_mode": mode}
    assert_equal(evaluate("Resize", x, sizes=[1, 2, *size], **attrs)[0], expected)


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
