"""The peers of the comparison on a CUDA device, timed with device events."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from baselines.peers.case import Case
from baselines.peers.pytorch import TorchPeer, build_case

# Arguments of torch.compile; None for eager PyTorch, the baseline of every ratio.
_COMPILE: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "eager_cudagraphs": {"backend": "cudagraphs"},
    "inductor": {},
    "inductor_cudagraphs": {"mode": "reduce-overhead"},
    "inductor_max_autotune": {"mode": "max-autotune"},
    "torchrlopt": {"backend": "rlopt", "options": {"executor": "default"}},
    "torchrlopt_eager": {"backend": "rlopt", "options": {"executor": "eager"}},
    "torchrlopt_cudagraphs": {"backend": "rlopt", "options": {"executor": "eager", "cuda_graphs": True}},
    "torchrlopt_inductor": {"backend": "rlopt", "options": {"executor": "inductor", "cuda_graphs": True}},
    "torchrlopt_tensorrt": {"backend": "rlopt", "options": {"executor": "tensorrt"}},
    "torchrlopt_auto": {"backend": "rlopt", "mode": "max-autotune"},
}

#: Names of the peers, in the order of reports.
CUDA_PEERS: tuple[str, ...] = tuple(_COMPILE)


def installed_cuda_peers() -> tuple[str, ...]:
    """The peers whose packages are installed."""
    has_tensorrt = importlib.util.find_spec("tensorrt") is not None
    return tuple(peer for peer in CUDA_PEERS if has_tensorrt or not peer.endswith("tensorrt"))


class CudaPeer(TorchPeer):
    """Eager PyTorch or a backend of torch.compile, on the current CUDA device.

    Args:
        case: one of `CUDA_PEERS` with model, batch size and dtype.

    Raises:
        ValueError: there is no such peer, or no device.
    """

    def __init__(self, case: Case, folder: str = "") -> None:
        if case.peer not in _COMPILE:
            raise ValueError(f"no peer named {case.peer!r}; choose one of: {', '.join(CUDA_PEERS)}")
        if not torch.cuda.is_available():
            raise ValueError("no CUDA device")
        model, inputs = build_case(case)
        self._model = model.cuda()
        self._inputs = tuple(x.cuda() for x in inputs)
        self._callable: Any = self._model
        settings = _COMPILE[case.peer]
        if settings is not None:
            # One-time loading and preparation of a compiler is not part of this model's first call.
            torch.compile(torch.sin, **settings)(torch.ones(8, device="cuda"))
            torch._dynamo.reset()
            self._callable = torch.compile(self._model, **settings)
        torch.cuda.synchronize()

    def call(self) -> Any:
        """Run the model once and wait for the device."""
        with torch.no_grad():
            # From here on the results of the last call of a recorded graph may be overwritten.
            torch.compiler.cudagraph_mark_step_begin()
            results = self._callable(*self._inputs)
        torch.cuda.synchronize()
        return results

    def call_ms(self) -> float:
        """Run the model once; milliseconds from an event before the call to one after its last kernel."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            start.record()
            self._callable(*self._inputs)
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end))
