"""Packing weights: in threads, without the GIL, and only if there is memory for it."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import prepare, threads
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect, operators, packed_weights

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


def methods() -> list[int]:
    return [indirect.SUMS, *indirect.TILES, *([indirect.BF16X3] if _C.kernel_has_matrix_unit() else [])]


@pytest.mark.parametrize("method", methods())
@pytest.mark.parametrize(("outputs", "inputs"), [(130, 33), (200, 64), (512, 40)])
def test_threads_write_what_one_writes(outputs: int, inputs: int, method: int) -> None:
    w, bias = weight(outputs, inputs, 3, 3), rand(outputs)
    with threads(1):
        alone = indirect.pack(w, bias, 1, method)
    assert alone.numel() >= 1 << 15  # else it would always be one
    for count in (2, 3, 7):
        with threads(count):
            assert torch.equal(indirect.pack(w, bias, 1, method), alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_groups_are_packed_by_threads_too(dtype: torch.dtype) -> None:
    if indirect.kernels(dtype) is None:
        pytest.skip("no kernels for bfloat16")
    w, bias = weight(4 * 40, 24, 3, 3), rand(160)
    with threads(1):
        alone = indirect.pack(w, bias, 4, dtype=dtype)
    with threads(3):
        assert torch.equal(indirect.pack(w, bias, 4, dtype=dtype), alone)


@pytest.mark.parametrize("method", methods())
def test_other_threads_run_meanwhile(method: int) -> None:
    """Nobody is given Python's lock but by who gives it back: for that long no thread asks for it."""
    w = weight(512, 256, 3, 3)
    ours = indirect.kernels()
    assert ours is not None
    sizes = (512, 256, 3, 3, 1, method)
    packed = torch.empty(ours.packed_size(*sizes))
    has_run, may_run = [], threading.Lock()
    may_run.acquire()

    def wait() -> None:
        with may_run:
            has_run.append(True)

    other = threading.Thread(target=wait)
    other.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e4)
    try:
        may_run.release()
        for _ in range(200):  # until the system gives it a core
            if has_run:
                break
            ours.pack(w, None, *sizes, packed)
        found = bool(has_run)
    finally:
        sys.setswitchinterval(before)
        other.join()
    assert found


def targets(x: Tensor, w: Tensor, v: Tensor) -> list[tuple[str, int | None]]:
    """The calls for a convolution and a product, and their methods."""

    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.linear(F.conv2d(x, w, padding=1).flatten(1)[:, :64], v)

    found = prepare(function, [x, w, v], [1, 2], is_real=True)
    ours = (operators.CONV, operators.LINEAR)
    return [
        (str(node.target).split(".")[1], indirect.method_of(node))
        for node in found.split.main.graph.nodes
        if node.target in ours
    ]


def test_what_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles, else sums, else PyTorch's own: half of what is left is for packed weights."""
    if _C.kernel_has_matrix_unit():
        pytest.skip("the matrix unit's packed weights have other sizes")
    x, w, v = rand(1, 64, 40, 40), weight(64, 64, 3, 3), rand(48, 64)
    ours = indirect.kernels()
    assert ours is not None
    tiles, sums = (4 * ours.packed_size(64, 64, 3, 3, 1, method) for method in (4, 0))
    product = 4 * ours.packed_size(48, 64, 1, 1, 1, 0)

    def chosen(available: int | None) -> dict[str, int | None]:
        monkeypatch.setattr(packed_weights, "available_bytes", lambda: available)
        return dict(targets(x, w, v))

    assert chosen(None) == {"conv": 4, "linear": 0}
    assert chosen(2 * (tiles + product)) == {"conv": 4, "linear": 0}
    # One of both does not fit any more: which one is the order of the passes.
    assert sum(0 if method is None else 1 for method in chosen(2 * (tiles + product) - 2).values()) == 2
    assert chosen(2 * (tiles + product) - 2)["conv"] == 0
    assert chosen(2 * (sums + product))["conv"] == 0
    assert chosen(2 * sums - 2).get("conv") is None
    assert chosen(0) == {}
