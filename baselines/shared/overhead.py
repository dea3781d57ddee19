"""Whole calls and the executor's part of them, in the measured process; see `baselines.calls`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch

import torchrlopt
from baselines.models import build
from baselines.shared.rounds import alternated_us
from torchrlopt.capture.trace import isolated
from torchrlopt.compile.compiled import Compiled
from torchrlopt.executors.eager.executor import EagerCallable
from torchrlopt.executors.onnx_runtimes.session_call import SessionCallable

#: Ways of calling the model.
WAYS = ("check", "frozen", "compile_check", "compile_frozen", "aot_eager", "eager")
#: Ways for the models of the suite, whose calls are long.
MODEL_WAYS = ("check", "frozen")
EXECUTORS = ("eager", "onnxruntime", "openvino")
_OPTIONS: Mapping[str, Any] = {
    "searcher": "none", "measure": False, "min_gain": -10.0, "cache": False,
    "on_error": "raise",
}  # fmt: skip
_WIDTH, _BATCH = 4, 2
_BLOCK = 20
_WARM_UP = 6


def chain(num_weights: int) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """A chain of linear layers of width 4 with an even number of weights, and the arguments of a call.

    There is almost nothing to compute, so the overhead around the graph shows.
    """
    torch.manual_seed(0)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(num_weights // 2)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(_BATCH, _WIDTH),)


class Overhead:
    """A model of the suite, or a number of weights, called in several alternating ways on one thread."""

    def __init__(self, folder: str, executor: str, model: str) -> None:
        torch.set_num_threads(1)
        self._executor = executor
        self._model, self._args = chain(int(model)) if model.isdigit() else build(model)
        self._ways, self._block = (WAYS, _BLOCK) if model.isdigit() else (MODEL_WAYS, 1)

    @torch.no_grad()
    def time(self, calls: int) -> dict[str, tuple[list[float], list[float]]]:
        """Microseconds of each call by way, in total and, for our ways, without the executor's part."""
        made = {way: self._made(way) for way in self._ways}
        inside: dict[str, list[float]] = {way: [] for way in made}

        def noted(way: str) -> Callable[[], Any]:
            call, clock = made[way]

            def noting() -> None:
                call()
                inside[way].append(clock.spent_us)

            return call if clock is None else noting

        times = alternated_us({way: noted(way) for way in made}, -(-calls // self._block), self._block)
        return {
            way: (each, [all_ - own for all_, own in zip(each, inside[way], strict=False)])
            for way, each in times.items()
        }

    def _made(self, way: str) -> tuple[Callable[[], Any], Any]:
        """A call of the model in one way, and the clock of its executor."""
        args = self._args
        if way == "eager":
            return lambda: self._model(*args), None
        if way == "aot_eager":
            fast: Callable[..., Any] = torch.compile(isolated(self._model), backend=way)
        elif way in MODEL_WAYS:
            fast = torchrlopt.optimise(self._model, executor=self._executor, weights=way, **_OPTIONS)
        else:
            options = {**_OPTIONS, "executor": self._executor, "weights": way.removeprefix("compile_")}
            fast = torch.compile(isolated(self._model), backend="rlopt", options=options)
        fast(*args)  # compiles
        clock = None if way == "aot_eager" else _Clock(lambda: fast(*args))
        for _ in range(_WARM_UP):
            fast(*args)
        return lambda: fast(*args), clock


class _Clock:
    """Times the executor inside of calls.

    Args:
        call: of one compiled graph.

    Attributes:
        spent_us: in the last call.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.spent_us = 0.0
        ran: list[Compiled] = []
        run = Compiled.run
        with mock.patch.object(Compiled, "run", lambda graph, args: ran.append(graph) or run(graph, args)):
            call()
        (compiled,) = ran
        lowered = compiled.lowered
        if isinstance(lowered, EagerCallable):
            lowered._run = self._timed(lowered._run)
            return
        assert isinstance(lowered, SessionCallable)
        open_session = lowered._runtime.open
        lowered._runtime = dataclasses.replace(
            lowered._runtime, open=lambda *args: self._timed(open_session(*args))
        )
        lowered.leave_sessions()

    def _timed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*operands: Any) -> Any:
            start = time.perf_counter_ns()
            outputs = run(*operands)
            self.spent_us = (time.perf_counter_ns() - start) / 1e3
            return outputs

        return timed
