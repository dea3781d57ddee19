"""torchrlopt as a peer: `optimise` with the options of the case."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

import torchrlopt
from baselines.peers.pytorch import TorchPeer


class RlOptPeer(TorchPeer):
    """torchrlopt."""

    def _prepare(self) -> None:
        self._optimise(torch.nn.ReLU().eval(), (torch.ones(8),))

    def _optimise(self, model: Any, inputs: tuple[Any, ...]) -> Any:
        case = self._case
        settings: dict[str, Any] = {"executor": case.executor, "searcher": case.searcher}
        if case.max_error:
            settings["max_error"] = float(case.max_error) if math.isfinite(case.budget) else case.max_error
        return torchrlopt.optimise(model, inputs, on_error="raise", weights=case.weights, **settings)

    def first_call(self) -> float:
        """Optimise and run once; returns the seconds that it took."""
        start = time.perf_counter()
        self._callable = self._optimise(self._model, self._inputs)
        self.call()
        return time.perf_counter() - start

    def kept(self) -> str:
        """The executor that runs the model now, and the searcher if it is not the agent; or why none does."""
        report = self._callable.report
        if report.kept == "original":
            return f"original: {report.fallback_reason or 'nothing to rewrite'}"
        return str(report.executor if report.searcher == "agent" else f"{report.executor}, {report.searcher}")
