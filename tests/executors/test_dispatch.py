"""Builtins compute the same as the overloads that they replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tests.kernels.image_cases import rand
from torchrlopt.executors.eager.dispatch import BUILTINS, use_builtins

X, Y, POSITIVE = rand(4, 6), rand(4, 6) * 2, rand(4, 6).abs() + 1
IMAGE, KERNEL = rand(2, 4, 8, 8), rand(6, 4, 3, 3)
VECTOR, BATCHES = rand(6), rand(2, 4, 6)

# Arguments by operator; every other operator takes one tensor.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "add.Scalar": (X, 2, 3),
    "addmm.default": (VECTOR, X, rand(6, 6)),
    "amax.default": (X, [1], True),
    "amin.default": (X, [0]),
    "argmax.default": (X, 1, True),
    "avg_pool2d.default": (IMAGE, [3, 3], [2, 2], [1, 1], True, False),
    "baddbmm.default": (rand(2, 4, 4), BATCHES, BATCHES.mT),
    "bmm.default": (BATCHES, BATCHES.mT),
    "cat.default": ([X, Y], 1),
    "clamp.default": (X, -0.5, 0.5),
    "clamp_.default": (X, None, 0.5),
    "clamp_min.default": (X, 0.1),
    "clamp_min_.default": (X, 0.1),
    "cumsum.default": (X, 1),
    "div.Scalar": (X, 3.0),
    "convolution.default": (IMAGE, KERNEL, VECTOR, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
    "embedding.default": (X, torch.tensor([[3, 0], [1, 1]])),
    "gather.default": (X, 1, torch.tensor([[5, 0]])),
    "hardtanh.default": (X, 0.0, 6.0),
    "hardtanh_.default": (X, 0.0, 6.0),
    "index_select.default": (X, 1, torch.tensor([5, 0])),
    "leaky_relu.default": (X, 0.3),
    "leaky_relu_.default": (X, 0.3),
    "linear.default": (X, rand(3, 6), rand(3)),
    "log.default": (POSITIVE,),
    "logical_and.default": (X > 0, Y > 0),
    "masked_fill.Scalar": (X, X > 0, 7.0),
    "mul.Scalar": (X, 0.3),
    "pow.Tensor_Tensor": (POSITIVE, Y),
    "repeat_interleave.self_int": (BATCHES, 3, 1),
    "rsqrt_.default": (POSITIVE,),
    "scaled_dot_product_attention.default": (BATCHES, BATCHES + 1, BATCHES * 2),
    "sqrt_.default": (POSITIVE,),
    "stack.default": ([X, Y], 1),
    "sub.Scalar": (X, 0.5, 2),
    "_log_softmax.default": (X, 1, False),
    "_native_batch_norm_legit_no_training.default": (IMAGE, *[VECTOR[:4].abs()] * 4, 0.1, 1e-5),
    "_scaled_dot_product_flash_attention_for_cpu.default": (BATCHES[None], BATCHES[None], BATCHES[None]),
    "matmul.default": (BATCHES, rand(6, 3)),
    "max_pool2d_with_indices.default": (IMAGE, [3, 3], [2, 2], [1, 1], [1, 1], True),
    "mean.dim": (X, [1], True),
    "mm.default": (X, rand(6, 3)),
    "native_layer_norm.default": (X, [6], VECTOR, VECTOR, 1e-5),
    "permute.default": (BATCHES, [2, 0, 1]),
    "pow.Tensor_Scalar": (POSITIVE, 2.5),
    "rsqrt.default": (POSITIVE,),
    "rsub.Scalar": (X, 1.0),
    "select.int": (BATCHES, 1, -1),
    "split_with_sizes.default": (X, [2, 4], 1),
    "sqrt.default": (POSITIVE,),
    "squeeze.dim": (rand(4, 1, 6), 1),
    "squeeze.dims": (rand(4, 1, 6, 1), [1, 3]),
    "sum.dim_IntList": (X, [0], False),
    "transpose.int": (BATCHES, 0, -1),
    "unbind.int": (X, 1),
    "unsqueeze.default": (X, 1),
    "where.self": (X > 0, X, Y),
    "_softmax.default": (X, -1, False),
    "cudnn_convolution_relu.default": (IMAGE, KERNEL, None, [1, 1], [1, 1], [1, 1], 1),
    "cudnn_convolution_add_relu.default": (
        *(IMAGE, KERNEL, rand(2, 6, 8, 8), 1.0, None),
        *([1, 1], [1, 1], [1, 1], 1),
    ),
}
BINARY = {"add", "div", "eq", "gt", "le", "lt", "maximum", "minimum", "mul", "ne", "sub"}


@pytest.mark.parametrize("overload", BUILTINS, ids=str)
def test_builtin_equals_overload(overload: Any) -> None:
    name = str(overload).removeprefix("aten.")
    args = ARGUMENTS.get(name, (X, Y) if name.partition(".")[0] in BINARY else (X,))
    if name.startswith("cudnn") and not torch.cuda.is_available():
        pytest.skip("cuDNN needs a CUDA device")
    device = "cuda" if name.startswith("cudnn") else "cpu"

    def fresh() -> list[Any]:
        return [arg.clone().to(device) if isinstance(arg, Tensor) else arg for arg in args]

    expected = overload(*fresh())
    got = BUILTINS[overload](*fresh())
    if not isinstance(expected, Tensor):
        got, expected = list(got), list(expected)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True, check_stride=True)


FORMS: dict[str, Callable[..., Any]] = {
    "view": lambda x: x.view(3, 8),
    "reshape": lambda x: x.t().reshape(-1),
    "expand": lambda x: x[:, None].expand(4, 3, 6),
    "slice": lambda x: x[:, 1:-1:2],
    "slice_past_the_end": lambda x: x[2:100],
    "slice_all": lambda x: torch.ops.aten.slice.Tensor(x),
    "slice_last": lambda x: torch.ops.aten.slice.Tensor(x, -1, None, 3),
    "add_in_place": lambda x: (x * 2).add_(x, alpha=3),
    "contiguous": lambda x: torch.ops.aten.contiguous.default(x.t(), memory_format=torch.contiguous_format),
    "layer_norm": lambda x: torch.layer_norm(x, [6], x[0], x[1], 1e-5),
    "layer_norm_statistics": lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5),
    "layer_norm_mean": lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5)[1],
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "sum_to_dtype": lambda x: x.sum(0, dtype=torch.float64),
    "scaled_addmm": lambda x: torch.addmm(x, x[:, :4], x, beta=2, alpha=3),
}


@pytest.mark.parametrize("name", FORMS)
def test_graph_runs_as_before(name: str) -> None:
    function = FORMS[name]
    module = make_fx(function, tracing_mode="fake")(X)
    before = module(X)
    use_builtins(module)
    after = module(X)
    if isinstance(before, Tensor):
        before, after = [before], [after]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new)
        assert old.stride() == new.stride()


def test_symbolic_sizes_of_views() -> None:
    def function(x: Tensor) -> Tensor:
        return x.view(x.shape[0] * 2, x.shape[1] // 2)[: x.shape[0]].expand(x.shape[0], -1)

    module = make_fx(function, tracing_mode="symbolic")(X)
    use_builtins(module)
    assert torch.equal(module(Y), function(Y))
