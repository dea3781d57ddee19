"""Helpers for tests of CUDA kernels: fake CUDA tensors, run on the CPU with stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torchrlopt.executors.eager.passes import PASSES, Program, run_passes
from torchrlopt.executors.weights.split_fx import Split

RELU, ADD_RELU = torch.cudnn_convolution_relu, torch.cudnn_convolution_add_relu
IMAGE = (2, 8, 9, 7)


def relu_stand_in(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    return torch.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups))


def add_relu_stand_in(x: Any, weight: Any, other: Any, alpha: float, bias: Any, *window: Any) -> Any:
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert other.is_contiguous(memory_format=torch.channels_last)
    return torch.relu(F.conv2d(x, weight, bias, *window) + alpha * other)


def lowered(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype) -> Split:
    """The parts of a function of an input and weights on CUDA, after all passes."""
    with FakeTensorMode():
        fakes = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
        module = make_fx(lambda *args: (function(*args),))(*fakes)
    names = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
    program = Program(module, names[1:], True)
    run_passes(program, PASSES)
    assert program.is_on_cuda
    return program.parts


def targets(split: Split) -> list[Any]:
    return [node.target for node in split.main.graph.nodes if node.op == "call_function"]


def check(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype) -> Split:
    """Lower it, and run it on the CPU, where it has to give the same numbers under the same strides."""
    split = lowered(function, *shapes, dtype=dtype)
    graph = fx.Graph()
    graph.output(graph.graph_copy(split.main.graph, {}))
    for node in graph.nodes:
        node.target = {RELU: relu_stand_in, ADD_RELU: add_relu_stand_in}.get(node.target, node.target)
    torch.manual_seed(0)
    tensors = [torch.randn(shape).to(dtype) for shape in shapes]
    results = split.prologue(*[tensors[at] for at in split.weights])
    (got,) = fx.GraphModule(split.main, graph)(*[tensors[at] for at in split.inputs], *results)
    expected = function(*tensors)
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, check_stride=True)
    return split
