"""torchrlopt/capture/{real_strides,whole}.py: layouts of images whose batch is 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

GENERATOR = torch.Generator().manual_seed(0)
WEIGHT, MASK = torch.randn(5, 8, 1, 1, generator=GENERATOR), torch.randn(8, generator=GENERATOR)


def transposed(rows: torch.Tensor) -> torch.Tensor:
    """Rows of channels as an image, as in the heads of vision transformers."""
    return rows.transpose(1, 2).reshape(rows.shape[0], 8, 4, 4)


def summed(rows: torch.Tensor) -> torch.Tensor:
    """The image plus a contiguous one, as behind the attention of a VAE."""
    return (transposed(rows) + rows.reshape(rows.shape[0], 8, 4, 4)) / 2


# PyTorch's own backend "aot_eager" fails for the norms.
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conv": lambda x: F.conv2d(transposed(x), WEIGHT),
    "relu": lambda x: torch.relu(transposed(x)),
    "sum": summed,
    "conv_of_sum": lambda x: F.conv2d(summed(x), WEIGHT),
    "pool_of_sum": lambda x: F.max_pool2d(summed(x), 2),
    "norm": lambda x: F.group_norm(transposed(x), 4, MASK, MASK),
    "norm_of_channels_last": lambda x: F.group_norm(torch.sigmoid(x[None].permute(0, 3, 1, 2)), 4),
    "norm_of_sum": lambda x: F.conv2d(F.group_norm(summed(x), 4), WEIGHT),
}


def compiled(function: Callable[[torch.Tensor], torch.Tensor], executor: str) -> Callable[..., torch.Tensor]:
    options = {"executor": executor, "on_error": "raise", "cache": False, "measure": False}
    return torch.compile(function, backend="rlopt", options=options)


@pytest.mark.parametrize("executor", ["eager", "onnxruntime"])
@pytest.mark.parametrize("name", CASES)
def test_results_have_the_strides_of_eager(name: str, executor: str) -> None:
    if executor == "onnxruntime":
        pytest.importorskip("onnxruntime")
    x = torch.randn(1, 16, 8)
    with torch.no_grad():
        fast = compiled(CASES[name], executor)
        torch.testing.assert_close(fast(x), CASES[name](x), rtol=1e-4, atol=1e-4, check_stride=True)


def test_a_norm_of_an_image_in_channels_last_stays_there() -> None:
    x = torch.randn(1, 8, 4, 4).to(memory_format=torch.channels_last)
    with torch.no_grad():
        fast = compiled(lambda x: F.group_norm(x, 4) * 2, "eager")
        assert fast(x).is_contiguous(memory_format=torch.channels_last)
