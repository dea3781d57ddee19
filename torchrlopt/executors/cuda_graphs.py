"""Records calls as CUDA graphs, one per set of sizes, and replays them without Python or launch overhead.

A recorded call reads and writes fixed memory. Weights, and values computed from them, are read in place.
Other arguments are copied into the recording's memory before a replay and results are copied out afterwards,
so the caller owns what it gets.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from torchrlopt.executors.weights.state import TensorStates
from torchrlopt.torch_private.modes import current_cuda_stream

logger = logging.getLogger("torchrlopt")

MAX_SETS = 2
"""Number of weight sets whose recordings are kept; each keeps the values computed from its weights alive."""

MAX_GRAPHS = 16
"""Number of size sets recorded per weight set; calls with other sizes run unrecorded."""

_NUM_WARM_UP = 2  # kernels choose algorithms and allocate workspaces in their first calls


def is_on_cuda(node: fx.Node) -> bool:
    """Whether the value of a node is a tensor on a CUDA device."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_cuda


def _copied(value: Any) -> Any:
    """A copy of a tensor; other values are returned unchanged."""
    return value.clone() if isinstance(value, torch.Tensor) else value


class _Recorded:
    """One recorded call.

    Args:
        run: the function.
        arguments: the arguments of the call.
        is_fixed: which arguments are read in place.
        pool: the memory pool that all recordings share; they never run at the same time.

    Attributes:
        device: index of the CUDA device that was current while recording.

    Raises:
        RuntimeError: the call cannot be recorded, or copies of its results would differ in strides or
            sharing.
    """

    def __init__(
        self, run: Callable[..., Any], arguments: Sequence[Any], is_fixed: Sequence[bool], pool: Any
    ) -> None:
        self._inputs = [
            value.clone() if isinstance(value, torch.Tensor) and not fixed else value
            for value, fixed in zip(arguments, is_fixed, strict=True)
        ]
        self._varying = [
            at for at, value in enumerate(arguments) if isinstance(value, torch.Tensor) and not is_fixed[at]
        ]
        self.device = torch.cuda.current_device()
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UP):
                run(*self._inputs)
        current.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU in the meantime.
        with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._outputs = tuple(run(*self._inputs))
        _check_own(self._outputs, self._inputs)

    def __call__(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        for at in self._varying:
            self._inputs[at].copy_(arguments[at])
        self._graph.replay()
        return tuple(map(_copied, self._outputs))


def _check_own(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Reject results whose copies would differ in strides, and results that share memory."""
    seen = {value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor)}
    for value in outputs:
        if not isinstance(value, torch.Tensor) or value.numel() == 0:
            continue
        pointer = value.untyped_storage().data_ptr()
        if pointer in seen:
            raise RuntimeError("a result shares memory with an argument or another result")
        seen.add(pointer)
        if value.clone().stride() != value.stride():
            raise RuntimeError("a result has gaps or overlaps")


class _Latest(NamedTuple):
    """The fixed arguments of the last call and the recordings for them."""

    states: TensorStates
    known: dict[Any, _Recorded | None]


class _Last(NamedTuple):
    """The stream of the last replay on a device and the event that marks its end."""

    raw: int
    stream: torch.cuda.Stream
    done: torch.cuda.Event


class GraphedCall:
    """A function of tensors and numbers, recorded for each set of sizes it is called with.

    Args:
        run: the function; it returns a tuple and modifies none of its arguments.
        is_fixed: which arguments stay in place between calls (weights). Their content may change; if one of
            them is replaced by another tensor, the call is recorded again.

    Attributes:
        num_recorded: number of recordings made.
    """

    def __init__(self, run: Callable[..., Any], is_fixed: Sequence[bool]) -> None:
        self._run = run
        self._is_fixed = list(is_fixed)
        self._is_varying = [not fixed for fixed in is_fixed]
        # By the addresses of the fixed arguments, most recently used last; then by the rest of the call.
        self._recorded: dict[Any, dict[Any, _Recorded | None]] = {}
        self._latest: _Latest | None = None
        self._lock = threading.Lock()
        self._pool: Any = None
        self._last: dict[int, _Last] = {}  # by device
        self.num_recorded = 0

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Replay the call if it is recorded or can be; otherwise run the function."""
        if torch.cuda.is_current_stream_capturing():  # the caller is already recording
            return tuple(self._run(*arguments))
        rest = tuple(map(_key, itertools.compress(arguments, self._is_varying)))
        if None not in rest:
            fixed = list(itertools.compress(arguments, self._is_fixed))
            with self._lock:
                known = self._known_of(fixed)
                if known is not None:
                    if rest not in known and len(known) < MAX_GRAPHS:
                        known[rest] = self._record(arguments)
                    recorded = known.get(rest)
                    if recorded is not None:
                        return self._replay(recorded, arguments)
        return tuple(self._run(*arguments))

    def _known_of(self, fixed: list[Any]) -> dict[Any, _Recorded | None] | None:
        """The recordings for these fixed arguments; None if there cannot be any."""
        latest = self._latest
        if latest is not None and _is_of(latest.states, fixed):  # faster than building the keys in Python
            return latest.known
        keys = tuple(map(_fixed_key, fixed))
        if None in keys:
            return None
        known = self._recorded.pop(keys, {})
        self._recorded[keys] = known
        if len(self._recorded) > MAX_SETS:
            del self._recorded[next(iter(self._recorded))]
        has_states = all(isinstance(value, torch.Tensor) and not value.is_inference() for value in fixed)
        self._latest = _Latest(TensorStates(fixed), known) if has_states else None
        return known

    def _replay(self, recorded: _Recorded, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Replay after the last replay, whichever stream that ran on, because all recordings share memory."""
        last = self._last.get(recorded.device)
        raw = current_cuda_stream(recorded.device)
        if last is None or last.raw != raw:  # `current_stream` costs 7 us
            done = torch.cuda.Event() if last is None else last.done
            last = self._last[recorded.device] = _Last(raw, torch.cuda.current_stream(recorded.device), done)
        last.stream.wait_event(last.done)
        outputs = recorded(arguments)
        last.done.record(last.stream)
        return outputs

    def _record(self, arguments: Sequence[Any]) -> _Recorded | None:
        """The recording; None if the call cannot be recorded, in which case it is not tried again."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            recorded = _Recorded(self._run, arguments, self._is_fixed, self._pool)
        except RuntimeError as error:
            logger.info("rlopt runs without CUDA graphs: %s", error)
            return None
        self.num_recorded += 1
        return recorded


def _is_of(states: TensorStates, fixed: list[Any]) -> bool:
    """Whether the arguments are still the same tensors, unmodified."""
    try:
        return states.is_of(fixed)
    except RuntimeError:  # an inference tensor, which has no version counter, replaced one of them
        return False


def _key(value: Any) -> Any:
    """What a recording depends on in an argument that is copied; None if the call cannot be recorded."""
    if not isinstance(value, torch.Tensor):
        return value
    return (value.shape, value.stride(), value.dtype) if value.is_cuda else None


def _fixed_key(value: Any) -> Any:
    """What a recording depends on in an argument that is read in place; None if it cannot be recorded."""
    if not isinstance(value, torch.Tensor):
        return value
    return (value.data_ptr(), value.shape, value.stride()) if value.is_cuda else None
