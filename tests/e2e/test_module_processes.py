"""Optimised modules in DataLoader workers and in forked and spawned processes."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset

from tests.crosses import nightly_but
from tests.e2e.models import QUICK, Branches, build
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(0))
LIMIT_S = 60


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert_close(got, expected.detach(), rtol=1e-4, atol=1e-5)


class Features(Dataset[torch.Tensor]):
    """What a model makes of each of a few tensors, computed in the worker."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.model(X[index]).detach()


@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_workers_of_a_data_loader(way: str) -> None:
    model = build(Branches)
    fast = optimise(model, X[0], **QUICK)
    loader = DataLoader(
        Features(fast), batch_size=2, num_workers=1, multiprocessing_context=way, timeout=LIMIT_S
    )
    close(torch.cat([*loader]), model(X))


def in_a_fork(work: Callable[[], bool]) -> None:
    """Work that must be done and come out true in a forked child, within the limit."""
    child = multiprocessing.get_context("fork").Process(target=lambda: exit_with(work()))
    child.start()
    child.join(LIMIT_S)
    is_over = child.exitcode is not None
    child.kill()
    assert is_over, "the child hangs"
    assert child.exitcode == 0


def exit_with(is_right: bool) -> None:
    raise SystemExit(0 if is_right else 1)


@pytest.mark.parametrize("executor", nightly_but(["eager"], ["eager", "onnxruntime", "openvino"]))
def test_a_fork_goes_on_with_what_was_compiled(executor: str) -> None:
    """Threads of a runtime do not live on in the child, which must not wait for them to end."""
    if executor != "eager":
        pytest.importorskip(executor)
    model = build(Branches)
    before = torch.get_num_threads()
    try:
        # Two threads for the runtime; PyTorch's own cannot live on in a child, whoever calls it.
        torch.set_num_threads(1 if executor == "eager" else 2)
        fast = optimise(model, X[0], **{**QUICK, "executor": executor})
    finally:
        torch.set_num_threads(before)
    assert fast.report.kept == "rewritten"

    def work() -> bool:
        close(fast(X[0]), model(X[0]))
        with torch.no_grad():
            model.a.weight.add_(1)
        close(fast(X[0]), model(X[0]))
        close(fast(X[0, :3]), model(X[0, :3]))
        torch._dynamo.reset()
        gc.collect()
        return True

    in_a_fork(work)
    close(fast(X[0]), model(X[0]))


def test_a_fork_compiles_for_itself() -> None:
    model = build(Branches)
    fast = optimise(model, **QUICK)

    def work() -> bool:
        close(fast(X[0]), model(X[0]))
        return fast.report.kept == "rewritten"

    in_a_fork(work)
    assert fast.reports == []
