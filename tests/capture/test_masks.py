"""Attention masks with contiguous elements, for kernels that require them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch.overrides import TorchFunctionMode

from torchrlopt.capture.fast_paths import DenseMasks


@pytest.mark.parametrize("device_types", [("cpu",), ("cuda",)])
@pytest.mark.parametrize("is_named", [True, False])
def test_an_expanded_mask_is_written_out(device_types: tuple[str, ...], is_named: bool) -> None:
    seen: list[bool] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def inference(aten: torch.fx.GraphModule, _: Any) -> Any:
            seen.append(any(node.target is torch.ops.aten.clone.default for node in aten.graph.nodes))
            return aten.forward

        with DenseMasks(device_types):
            return aot_autograd(fw_compiler=inference, inference_compiler=inference)(gm, inputs)

    def attend(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        wide = mask.expand(1, 1, 8, 8)
        if is_named:
            return F.scaled_dot_product_attention(q, q, q, attn_mask=wide)
        return F.scaled_dot_product_attention(q, q, q, wide)

    torch._dynamo.reset()
    q, mask = torch.randn(1, 2, 8, 4), torch.arange(8).reshape(1, 1, 8, 1) < 5
    with torch.no_grad():
        got = torch.compile(attend, backend=backend)(q, mask)
        torch.testing.assert_close(got, attend(q, mask), equal_nan=True)
    assert seen == [device_types == ("cpu",)]


class Seen(TorchFunctionMode):
    """Remembers the masks that attention is given."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[torch.Tensor | None] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.masks.append(args[3] if len(args) > 3 else None)
        return func(*args, **(kwargs or {}))


def test_a_mask_that_lies_so_stays() -> None:
    q, mask = torch.randn(1, 2, 8, 4), torch.ones(8, 8, dtype=torch.bool)
    with Seen() as seen, DenseMasks(("cpu",)), torch.no_grad():
        F.scaled_dot_product_attention(q, q, q, mask)
        F.scaled_dot_product_attention(q, q, q)
    assert seen.masks[0] is mask
    assert seen.masks[1] is None


def test_what_is_repeated_over_heads_stays_so() -> None:
    q, mask = torch.randn(2, 3, 8, 4), torch.randn(2, 1, 8, 1).expand(2, 3, 8, 8)
    with Seen() as seen, DenseMasks(("cpu",)), torch.no_grad():
        F.scaled_dot_product_attention(q, q, q, mask)
    (got,) = seen.masks
    assert got is not None
    assert torch.equal(got, mask)
    assert got.stride() == (64, 0, 8, 1)
