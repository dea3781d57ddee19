"""All options of the package, in one frozen, validated dataclass.

`torch.compile(..., options={...})`, `optimise(...)`, `optimise_onnx(...)` and the command line all construct
it, so an unknown or ill-typed option fails the same way everywhere and names the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from torchrlopt import executor_table, searcher_table
from torchrlopt.errors import OptionsError

Weights = Literal["check", "live", "frozen"]
Numerics = Literal["real", "strict"]
Prices = Literal["measured", "typical"]
OnError = Literal["fallback", "raise"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """User options. Every field is validated on construction.

    Attributes:
        searcher: how substitutions are chosen; `searcher_table.ROWS` lists them. "agent" starts from the
            greedy plan and improves it by local search and with the trained agent that ships with the
            package, or with yours; "greedy" applies the cheapest candidate until none lowers the cost;
            "none" is a no-op.
        executor: what runs the rewritten graph; `torchrlopt.executor_table.ROWS` lists the executors, with
            the package and the devices that each requires ("onnxruntime", "openvino" and "tensorrt" are
            extras of this package). "auto" plans for each available executor, times all of them on the
            example inputs and keeps the fastest. "default" is eager PyTorch on the CPU, except that ONNX
            Runtime or OpenVINO is tried first if it is installed and predicted to win clearly (many small
            operators). On CUDA, "default" is TensorRT if it is installed and supports the graph, else eager.
            Files are planned for eager.
        autotune_s: if several executors are tried, no executor except eager is started after this many
            seconds.
        executor_options: settings of the executor, by name; its row in `executor_table` describes them.
        cuda_graphs: record calls of the rewritten graph as CUDA graphs, one for each of up to 16 sets of
            sizes, and replay them. For "eager" and "inductor" on CUDA; no effect elsewhere or with
            `weights="live"`.
        budget_ms: time limit of the search, in milliseconds, excluding time spent waiting for a processor. It
            grows in proportion for graphs of more than 1,500 operators. The greedy search of "agent"
            may take three times the budget. 0 keeps the original graph.
        budget_steps: maximum number of graphs that the search expands; 0 for no limit.
        beam_width: number of graphs that the "beam" searcher keeps per step.
        alpha: the "taso" searcher expands candidates that cost up to `alpha` times the best.
        weights: "check" caches expressions over weights and checks at every call whether a weight has
            changed; "live" evaluates them at every call; with "frozen" the caller guarantees that neither
            weights nor other attributes of the model ever change and that no other instance of the model
            shares the compiled code.
        release_weights: with "frozen" and the eager executor: if the graph runs on packed copies of weights,
            the originals move to unnamed files and their memory is freed. They are read back when accessed,
            for example by `state_dict`; the first access to each is as slow as the disk.
        numerics: "real" allows substitutions that are equal over the reals (rounding may differ); "strict"
            allows only bit-exact ones.
        prices: "measured" uses the results of `torchrlopt profile` and `torchrlopt device` on this machine,
            if they have been run; "typical" uses the constants of a typical machine, which are also the
            default without those results.
        measure_plans: maximum number of plans to build and time: the plan found by the search and the
            cheapest plans that differ from it. The fastest is used. If several executors are tried, this
            applies to the fastest only, regardless of `autotune_s`. No effect on files.
        verify: before use, compare the rewritten and the original graph with a float64 reference.
        measure: time the rewritten graph against the original before use; if False, the cost model decides.
        measure_ms: wall-clock limit of that timing, in milliseconds; up to six times as long if other
            processes compete for the processors.
        min_gain: smallest relative reduction of measured time for which the rewritten graph is used: with
            0.02 it must take at most 98 % of the original's time.
        on_error: "fallback" runs the original graph after any error, during compilation or in a later call,
            and warns once per cause; "raise" raises the error.
        cache: read plans from and add them to the plan store on disk.
        seed: seed of searchers that draw and of the random inputs used for verification.
        agent: path of an agent checkpoint (`python training/retrain.py` makes one) for the searcher "agent".
            By default, the checkpoint named by the environment variable TORCHRLOPT_AGENT, else the one that
            ships with the package.
        save_dir: directory in which `before.onnx`, `after.onnx` and `report.json` of each graph are saved.
        plan: path of a file written by `report.plan.save`: its steps are applied without a search. With
            `executor="default"`, the plan's executor is used.
        repro_dir: directory in which each failure leaves a folder that reproduces it, see
            `Report.dump_repro`; by default the one named by the environment variable TORCHRLOPT_REPRO_DIR, if
            any.
    """

    searcher: str = "agent"
    executor: str = "default"
    autotune_s: float = 120.0
    executor_options: dict[str, Any] | None = None
    cuda_graphs: bool = False
    budget_ms: float = 300.0
    budget_steps: int = 0
    beam_width: int = 8
    alpha: float = 1.05
    weights: Weights = "check"
    release_weights: bool = False
    numerics: Numerics = "real"
    prices: Prices = "measured"
    measure_plans: int = 1
    verify: bool = True
    measure: bool = True
    measure_ms: float = 500.0
    min_gain: float = 0.02
    on_error: OnError = "fallback"
    cache: bool = True
    seed: int = 0
    agent: str | None = None
    save_dir: str | None = None
    plan: str | None = None
    repro_dir: str | None = None

    def __post_init__(self) -> None:
        """Validate every field; raise OptionsError on failure."""
        for name, hint in _hints().items():
            object.__setattr__(self, name, _checked(name, hint, getattr(self, name)))
        _check_instructions()
        if self.searcher not in searcher_table.names():
            raise _no_such_value("searcher", self.searcher, searcher_table.names())
        if self.executor not in executor_table.choices():
            raise _no_such_value("executor", self.executor, executor_table.choices())
        for name, minimum, maximum in _RANGES:
            value = getattr(self, name)
            if not minimum <= value <= maximum:
                raise OptionsError(
                    f"option {name} is out of range",
                    expected=f"{minimum} to {maximum}",
                    got=value,
                    todo=f"leave it out for the default, {_DEFAULTS[name]!r}",
                )
        try:
            json.dumps(self.executor_options, allow_nan=False, sort_keys=True)
        except (TypeError, ValueError) as error:  # they are part of the plan store's keys
            raise OptionsError(
                "option executor_options is no JSON",
                expected="text, numbers, bool, None, lists, and dicts by text",
                got=f"{self.executor_options!r} ({error})",
            ) from error
        if self.release_weights and self.weights != "frozen":
            raise OptionsError(
                "originals of weights that may change cannot be released",
                expected="weights='frozen'",
                got=f"release_weights=True, weights={self.weights!r}",
            )
        if self.executor == "auto" and not self.measure:
            raise OptionsError(
                "the executor is chosen by measurement",
                expected="measure=True",
                got="executor='auto', measure=False",
            )
        if self.measure_plans > 1 and not self.measure:
            raise OptionsError(
                "plans are chosen by measurement",
                expected="measure=True",
                got=f"measure_plans={self.measure_plans}, measure=False",
            )
        if self.executor == "auto" and self.plan is not None:
            raise OptionsError(
                "a plan that is given was made for one executor",
                expected="that one, or the name of another",
                got="executor='auto'",
                todo="leave executor out: the plan names it",
            )
        if self.agent is not None and self.searcher != searcher_table.AGENT:
            # If it were ignored silently, it would look as if the agent had chosen the plan.
            raise OptionsError(
                "option agent has no effect on this searcher",
                expected=f"searcher={searcher_table.AGENT!r}",
                got=f"searcher={self.searcher!r}, agent={self.agent!r}",
                todo="leave agent out",
            )

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Options:
        """Make options from names and values.

        Args:
            given: option names and values; a missing one takes its default.

        Raises:
            OptionsError: a name is unknown, or a value is ill-typed or out of range; the message names the
                nearest valid one.
        """
        for name in given:
            if name not in _DEFAULTS:
                raise OptionsError(
                    f"unknown option {name!r}",
                    expected=f"one of {', '.join(_DEFAULTS)}",
                    got=name,
                    todo=f"did you mean {nearest(str(name), _DEFAULTS)!r}?",
                )
        return cls(**given)

    def with_searcher(self, name: str) -> Options:
        """Return a copy with another searcher; `agent` is kept if that searcher uses it."""
        agent = self.agent if name == searcher_table.AGENT else None
        return dataclasses.replace(self, searcher=name, agent=agent)

    def on(self, device_type: str) -> Options:
        """Return the options without those that have no effect on a device.

        Args:
            device_type: "cpu" or "cuda".
        """
        has_no_graphs = self.cuda_graphs and device_type != "cuda"
        return dataclasses.replace(self, cuda_graphs=False) if has_no_graphs else self

    def records(self, device_type: str) -> bool:
        """Whether executors that can record calls as CUDA graphs do so on a device.

        Args:
            device_type: "cpu" or "cuda".
        """
        # With live weights every input may change, so every call would copy all of them.
        return self.cuda_graphs and device_type == "cuda" and self.weights != "live"

    def search_key(self) -> dict[str, Any]:
        """Return the options that the plan depends on: part of the plan store's key."""
        return {name: getattr(self, name) for name in _SEARCH_FIELDS}


MAX_BUDGET_MS = 86_400_000
_SEARCH_FIELDS = (
    "searcher",
    "executor",
    "executor_options",
    "cuda_graphs",
    "budget_ms",
    "budget_steps",
    "beam_width",
    "alpha",
    "weights",
    "numerics",
    "prices",
    "measure_plans",
    "seed",
)
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("budget_ms", 0, MAX_BUDGET_MS),
    ("budget_steps", 0, 2**31 - 1),
    ("beam_width", 1, 10_000),
    ("alpha", 1, 100),
    ("autotune_s", 0, 86_400),
    ("measure_plans", 1, 1000),
    ("measure_ms", 1, 86_400_000),
    ("min_gain", -10, 1),
    ("seed", 0, 2**63 - 1),
)
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Options)}


def _hints() -> dict[str, Any]:
    """Types of the fields, resolved once."""
    if not _HINTS:
        _HINTS.update(typing.get_type_hints(Options))
    return _HINTS


_HINTS: dict[str, Any] = {}


def nearest(word: str, valid: Iterable[str]) -> str:
    """The entry of `valid` closest to `word` by difflib's ratio, ignoring case."""
    return max(valid, key=lambda name: difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio())


def _checked(name: str, hint: Any, value: Any) -> Any:
    """Return `value` converted to the type `hint`, or raise OptionsError."""
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value
        raise _no_such_value(name, value, choices)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None:
            return None
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    hint = typing.get_origin(hint) or hint
    # bool is a subclass of int, but `seed=True` is a mistake; an int is a valid float.
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise OptionsError(
            f"option {name} has the wrong type",
            expected=hint.__name__,
            got=f"{value!r} ({type(value).__name__})",
            todo=f"the default is {_DEFAULTS[name]!r}",
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionsError(f"option {name} must be a finite number", expected="a finite number", got=value)
    return value


def _no_such_value(name: str, value: Any, choices: Sequence[str]) -> OptionsError:
    todo = f"did you mean {nearest(value, choices)!r}?" if isinstance(value, str) else ""
    return OptionsError(
        f"option {name} has no such value",
        expected=f"one of {', '.join(choices)}",
        got=repr(value),
        todo=todo,
    )


def _check_instructions() -> None:
    """Reject an invalid value of TORCHRLOPT_INSTRUCTIONS, like an unknown option.

    A user who sets it wants a limit; a misspelt value must not silently mean none.
    """
    given = os.environ.get("TORCHRLOPT_INSTRUCTIONS")
    if not given:
        return
    from torchrlopt import _C  # lazy: slow to load and rarely needed here

    try:
        _C.kernel_instructions()
    except ValueError as error:
        raise OptionsError(
            "the environment variable TORCHRLOPT_INSTRUCTIONS has no such value",
            expected="avx512, avx2, none, amx-in-software, or nothing",
            got=given,
            todo="set one of these, or unset it",
        ) from error
