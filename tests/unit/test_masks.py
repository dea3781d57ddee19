"""Masks of attention with elements side by side, for kernels that want them so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd

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


def test_a_mask_that_lies_so_stays() -> None:
    q, mask = torch.randn(1, 2, 8, 4), torch.ones(8, 8, dtype=torch.bool)
    with DenseMasks(("cpu",)), torch.no_grad():
        assert F.scaled_dot_product_attention(q, q, q, mask).shape == q.shape
        assert F.scaled_dot_product_attention(q, q, q).shape == q.shape
