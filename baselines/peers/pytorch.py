"""Eager PyTorch, and PyTorch's own compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from baselines.models import build, samples
from baselines.peers.case import Case
from baselines.peers.peer import Peer
from baselines.trained import table as tasks

# Calls to calibrate with. NNCF's default is 300, of data that are more varied than random numbers.
_NUM_SAMPLES = 16


def build_case(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs in the dtype of the case."""
    torch.set_num_threads(case.threads)
    if case.model in tasks.NAMES:
        task = tasks.trained(case.model)
        model, inputs = task.model, task.inputs
    else:
        model, inputs = build(case.model, case.batch)
    dtype = getattr(torch, case.dtype)
    return model.to(dtype), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def calibration(case: Case) -> list[tuple[Any, ...]]:
    """Inputs to find the ranges of activations with; those of the timed calls come first."""
    if case.model in tasks.NAMES:
        task = tasks.trained(case.model)
        return [task.inputs, *task.others]
    _, inputs = build(case.model, case.batch)
    return [inputs, *samples(case.model, case.batch, _NUM_SAMPLES - 1)]


def to_arrays(outputs: Any) -> list[np.ndarray]:
    """Flat numpy arrays of a tensor or a tuple of tensors; bfloat16, which numpy lacks, becomes float32."""
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return [(t.float() if t.dtype == torch.bfloat16 else t).cpu().numpy() for t in tensors]


class Autocast(torch.nn.Module):
    """Calls a module under PyTorch's automatic mixed precision, in bfloat16."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        """Call the module."""
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(*inputs)


def _rounded(model: torch.nn.Module, peer: str) -> torch.nn.Module:
    """The model in the precision of a peer of `ROUNDED_PEERS`; otherwise as it is."""
    if peer.endswith("_autocast"):
        return Autocast(model)
    if peer.endswith("_int8"):
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(model, Int8DynamicActivationInt8WeightConfig())
    return model


class TorchPeer(Peer):
    """Eager PyTorch, or inductor through torch.compile; constants are frozen in lower precision."""

    def __init__(self, case: Case, folder: str) -> None:
        self._case = case
        model, self._inputs = build_case(case)
        self._callable = self._model = _rounded(model, case.peer)
        if case.peer == "inductor_freezing" or case.is_rounded:
            from torch._inductor import config  # imported here: eager's process is measured without it

            config.freezing = True
        if not case.peer.startswith("eager"):
            # Imports and one-time preparation of a compiler (inductor: 10 s for a C++ header) are not part of
            # this model's first call.
            self._prepare()
            # Dynamo remembers the sizes it has seen, and would treat this model's as dynamic.
            torch._dynamo.reset()

    def _prepare(self) -> None:
        torch.compile(torch.sin)(torch.ones(8))
        self._callable = torch.compile(self._model)

    def call(self) -> Any:
        """Run the model once."""
        with torch.no_grad():
            return self._callable(*self._inputs)

    def outputs(self) -> list[np.ndarray]:
        """Run once and return the outputs, flat."""
        return to_arrays(self.call())

    def answer(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once on other inputs of the same shapes and return the outputs, flat."""
        with torch.no_grad():
            return to_arrays(self._callable(*map(torch.from_numpy, inputs)))

    def reference_outputs(self) -> list[np.ndarray]:
        """Convert the model to float64 and return the outputs."""
        self._callable = self._model = self._model.double()
        self._inputs = tuple(x.double() if x.is_floating_point() else x for x in self._inputs)
        return self.outputs()
