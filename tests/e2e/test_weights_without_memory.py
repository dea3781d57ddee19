"""Weights whose memory was released, as sharded training does between calls."""

from __future__ import annotations

import pytest
import torch

from tests.e2e.models import Branches, build
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_a_weight_without_memory_is_the_original_s_error() -> None:
    model, x = build(Branches), torch.randn(5, 16)
    with torch.no_grad():
        fast = optimise(model, x, measure=False, cache=False)
        for _ in range(4):
            fast(x)
        weight = next(model.parameters())
        kept = weight.detach().clone()
        weight.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="setStorage"):
            fast(x)
        weight.untyped_storage().resize_(kept.nbytes)
        weight.copy_(kept)
        torch.testing.assert_close(fast(x), model(x))
