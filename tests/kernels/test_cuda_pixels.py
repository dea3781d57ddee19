"""Max pools, means, concatenated images and heads on CUDA: checked on fake tensors, run on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.executors.cuda_cases import IMAGE, check, targets
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import pixels
from torchrlopt.executors.eager.passes import PASSES, Program, run_passes

aten = torch.ops.aten


@pytest.mark.parametrize(
    "window", [(3, 2), (3, 2, 1), (2,), (3, 1, 1, 2), ((3, 2), (2, 1), (1, 0)), (3, 2, 0, 1, True)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_max_pools_behind_convolutions_are_pools_of_volumes(window: Any, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.max_pool2d(F.conv2d(x, weight, padding=1), *window), weight)

    split = check(function, (2, 8, 12, 11), (8, 8, 3, 3), dtype=dtype)
    assert pixels.max_pool in targets(split)
    assert inventory(split.main.graph).packed["max pool"] == 1


def test_a_pool_whose_places_are_read_stays() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        values, places = F.max_pool2d(F.conv2d(x, weight), 2, return_indices=True)
        return values + places

    assert pixels.max_pool not in targets(check(function, IMAGE, (8, 8, 3, 3), dtype=torch.float32))


@pytest.mark.parametrize("axis", [1, -3, 0, 2, -1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_images_behind_convolutions_are_joined_as_volumes(axis: int, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        left, right = F.conv2d(x, weight, padding=1).split(4, 1)
        return torch.relu(torch.cat([right, left.neg(), right], axis))

    split = check(function, (2, 8, 12, 11), (8, 8, 3, 3), dtype=dtype)
    assert pixels.join in targets(split)
    assert inventory(split.main.graph).packed["join"] == 1


def test_weights_are_joined_before_the_calls() -> None:
    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        left, right = F.conv2d(a, b).split(4, 1)
        return F.conv2d(x, torch.cat([right, left], 1))

    split = check(function, IMAGE, (8, 8, 3, 3), (8, 8, 1, 1), dtype=torch.float32)
    assert not {pixels.join, aten.cat.default} & set(targets(split))


@pytest.mark.parametrize("dims", [(2, 3), (-1, -2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_means_over_pixels_are_products(dims: tuple[int, int], keepdim: bool) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.conv2d(x, weight, padding=1).mean(dims, keepdim=keepdim))

    split = check(function, (2, 8, 12, 11), (8, 8, 3, 3), dtype=torch.bfloat16)
    assert pixels.pixel_mean in targets(split)
    assert inventory(split.main.graph).packed["mean"] == 1
    assert not {"ones", "new_ones"} & {getattr(each, "__name__", "") for each in targets(split)}


def test_a_head_has_the_strides_it_had() -> None:
    split = check(lambda x, w: x @ w.t(), (1, 16), (8193, 16), dtype=torch.bfloat16)
    assert any(node.target is aten.constant_pad_nd.default for node in split.prologue.graph.nodes)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_of_products_are_aligned(has_bias: bool, dtype: torch.dtype) -> None:
    """And products of one weight extend it once."""

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        product = F.linear(x, weight, bias if has_bias else None)
        return torch.cat([product, F.linear(x + 1, weight)])

    split = check(function, (2, 64, 16), (1001, 16), (1001,), dtype=dtype)
    padded = [node for node in split.prologue.graph.nodes if node.target is aten.constant_pad_nd.default]
    assert len(padded) == (2 if has_bias else 1)
    assert targets(split).count(torch._C._nn.linear) == 2


@pytest.mark.parametrize("features", [1000, 1001])
def test_a_batch_that_varies_is_not_asked_for(features: int) -> None:
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, static_shapes=False)
    size = mode.from_tensor(torch.empty(6, 16), static_shapes=False).shape[0]
    with mode:
        x = torch.empty(size, 16, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(features, 16, dtype=torch.bfloat16, device="cuda")
        with enable_python_dispatcher():
            module = make_fx(lambda x, w: (x @ w.t(),))(x, weight)
    assert not isinstance(x.shape[0], int)
    known = len(shapes.guards)
    names = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
    program = Program(module, names[1:], True)
    run_passes(program, PASSES)
    assert len(shapes.guards) == known
    nodes = program.parts.prologue.graph.nodes
    assert any(node.target is aten.constant_pad_nd.default for node in nodes) == (features == 1001)


@pytest.mark.parametrize("keepdim", [False, True])
def test_a_mean_of_no_images(keepdim: bool) -> None:
    x = torch.empty(0, 8, 12, 11).contiguous(memory_format=torch.channels_last)
    mean = pixels.pixel_mean(x, torch.ones(1, 1, 132), keepdim)
    assert mean.shape == x.mean((2, 3), keepdim=keepdim).shape


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_pools_means_and_joins_are_atens(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 24, 33, 31, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
    x[0, 1, 3, 5], x[1, 2, 8, 8] = torch.nan, torch.inf
    (got,) = pixels.max_pool(x, [3, 2], [2, 2], [1, 1], [1, 1], True)
    expected = F.max_pool2d(x, (3, 2), (2, 2), (1, 1), (1, 1), True)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True, check_stride=True)
    parts = [x[:, 3:9], x[:, :3], x]
    for axis, images in ((1, parts), (0, [x[:, :7], x[:, 7:14]])):
        torch.testing.assert_close(
            pixels.join(images, axis),
            torch.cat(images, axis),
            rtol=0,
            atol=0,
            equal_nan=True,
            check_stride=True,
        )
    if dtype is torch.float16:
        return
    mean = pixels.pixel_mean(x, x.new_ones(1, 1, 33 * 31), True)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    expected = x.double().mean((2, 3), keepdim=True).to(dtype)
    torch.testing.assert_close(mean, expected, rtol=tolerance, atol=tolerance / 10, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("executor", ["eager", "inductor"])
@pytest.mark.parametrize("weights", ["check", "live"])
def test_a_head_over_a_vocabulary_on_a_gpu(executor: str, weights: str) -> None:
    import torchrlopt

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 10_001))
    model = model.eval().to("cuda", torch.bfloat16)
    x = torch.randn(2, 7, 64, device="cuda", dtype=torch.bfloat16)
    torch._dynamo.reset()
    settings: dict[str, Any] = {"min_gain": -10.0, "on_error": "raise", "cache": False}
    settings |= {"cuda_graphs": True, "weights": weights}
    ours = torchrlopt.optimise(model, x, executor=executor, **settings)
    assert ours.report.kept == "rewritten"
    with torch.no_grad():
        for _ in range(3):
            x = x + 0.5
            torch.testing.assert_close(ours(x), model(x), rtol=3e-2, atol=3e-2, check_stride=True)
        model[2].bias += 1
        torch.testing.assert_close(ours(x), model(x), rtol=3e-2, atol=3e-2)
