"""The passes of the eager executor, with and without those that select kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from torchrlopt.executors.eager.executor import assemble
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.options import LoweringOptions


def network(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor]:
    y = F.relu(F.conv2d(x, w * 2).clone())
    z = torch.sigmoid(y.flatten(1) @ (v + v)).clone()
    return (torch.exp(z * 2),)


def test_a_plain_program_runs_pytorchs_own_calls() -> None:
    torch.manual_seed(0)
    args = [torch.randn(2, 16, 16, 16), torch.randn(32, 16, 3, 3) / 8, torch.randn(32 * 14 * 14, 64) / 32]
    found = {}
    for is_plain in (True, False):
        module = make_fx(network, tracing_mode="fake")(*args)
        run = assemble(module, ("w_1", "v_1"), LoweringOptions(), is_plain)
        with torch.no_grad():
            (got,), (expected,) = run(*args), network(*args)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, check_stride=True)
        found[is_plain] = inventory(run.main.graph)
    assert found[True].packed == {}
    assert found[True].plain == {"convolution": 1, "product": 1}
    assert sum(found[False].packed.values()) == 2
