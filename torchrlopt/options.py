"""All options of the package, in frozen, validated dataclasses: one group for each stage that reads them.

`torch.compile(..., options={...})`, `optimise(...)`, `optimise_onnx(...)` and the command line all construct
`Options`, by flat names or by group. An unknown or ill-typed option fails the same way everywhere and names
the nearest valid one. A stage is handed its group. Each option is declared once: type, valid values, default
and documentation.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from torchrlopt import executor_table, searcher_table
from torchrlopt.errors import OptionsError

Weights = Literal["check", "live", "frozen"]
Numerics = Literal["real", "strict"]
Prices = Literal["measured", "typical"]
OnError = Literal["fallback", "raise"]
WhileCompiling = Literal["wait", "original"]
ERROR_METRICS = ("rms", "top1")

MODES: dict[str | None, dict[str, Any]] = {
    None: {},
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"executor": "auto", "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"executor": "auto"},
}
"""The options that torch.compile's modes imply; an option that is given overrides its mode."""

MAX_BUDGET_MS = 86_400_000
_DAY_S = 86_400


@dataclasses.dataclass(frozen=True)
class _Range:
    """The valid values of a number, including both ends."""

    minimum: float
    maximum: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Group:
    """Options that one stage reads. Every field is validated on construction."""

    def __post_init__(self) -> None:
        """Validate every field; raise OptionsError on failure."""
        hints = _hints(type(self))  # type: ignore[arg-type]  # mypy asks instances, not the class, for a hash
        for name, hint in hints.items():
            object.__setattr__(self, name, _checked(name, hint, getattr(self, name)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Common(_Group):
    """Options that several stages read. Those of the whole apply to all of its groups."""

    numerics: Numerics = "real"
    """What counts as equal: "real" allows substitutions and kernels that are equal over the reals (rounding
    may differ); "strict" allows only bit-exact substitutions, and none of these kernels."""

    on_error: OnError = "fallback"
    """What an error does, during compilation or in a later call: "fallback" runs the original graph and warns
    once per cause; "raise" raises the error."""

    cache: bool = True
    """Read plans from and add them to the plan store on disk."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(_Common):
    """What a searcher reads."""

    searcher: Annotated[str, searcher_table.names] = "agent"
    """How substitutions are chosen; `searcher_table.ROWS` lists the searchers. "agent" starts from the greedy
    plan and improves it by local search and with the trained agent that ships with the package, or with
    yours; "greedy" applies the cheapest candidate until none lowers the cost; "none" is a no-op."""

    budget_ms: Annotated[float, _Range(0, MAX_BUDGET_MS)] = 300.0
    """Time limit of the search, in milliseconds, excluding time spent waiting for a processor. It grows in
    proportion for graphs of more than 1,500 operators. The greedy search of "agent" may take three
    times the budget. 0 keeps the original graph."""

    budget_steps: Annotated[int, _Range(0, 2**31 - 1)] = 0
    """Maximum number of graphs that the search expands; 0 for no limit."""

    beam_width: Annotated[int, _Range(1, 10_000)] = 8
    """Number of graphs that the "beam" searcher keeps per step."""

    alpha: Annotated[float, _Range(1, 100)] = 1.05
    """The "taso" searcher expands candidates that cost up to `alpha` times the best."""

    seed: Annotated[int, _Range(0, 2**63 - 1)] = 0
    """Seed of searchers that draw, and of the random inputs used for verification."""

    prices: Prices = "measured"
    """What graphs are priced by: "measured" uses the results of `torchrlopt profile` and `torchrlopt device`
    on this machine, if they have been run; "typical" uses the constants of a typical machine, which are also
    the default without those results."""

    agent: str | None = None
    """Path of an agent checkpoint (`python training/retrain.py` makes one) for the searcher "agent". By
    default, the checkpoint named by the environment variable TORCHRLOPT_AGENT, else the one that ships with
    the package."""

    def __post_init__(self) -> None:
        """Validate every field, and that the searcher uses the agent; raise OptionsError on failure."""
        super().__post_init__()
        if self.agent is not None and self.searcher != searcher_table.AGENT:
            # If it were ignored silently, it would look as if the agent had chosen the plan.
            raise OptionsError(
                "option agent has no effect on this searcher",
                expected=f"searcher={searcher_table.AGENT!r}",
                got=f"searcher={self.searcher!r}, agent={self.agent!r}",
                todo="leave agent out",
            )

    def with_searcher(self, name: str) -> SearchOptions:
        """Return a copy with another searcher; `agent` is kept if that searcher uses it."""
        agent = self.agent if name == searcher_table.AGENT else None
        return dataclasses.replace(self, searcher=name, agent=agent)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimingOptions(_Group):
    """What decides by time: whether the rewritten graph is faster, and which executor and plan are."""

    measure: bool = True
    """Time the rewritten graph against the original before use; if False, the cost model decides."""

    measure_ms: Annotated[float, _Range(1, 1000 * _DAY_S)] = 500.0
    """Wall-clock limit of that timing, in milliseconds; up to six times as long if other processes compete
    for the processors."""

    min_gain: Annotated[float, _Range(-10, 1)] = 0.02
    """Smallest relative reduction of measured time for which the rewritten graph is used: with 0.02 it must
    take at most 98 % of the original's time."""

    measure_plans: Annotated[int, _Range(1, 1000)] = 1
    """Maximum number of plans to build and time: the plan found by the search and the cheapest plans that
    differ from it. The fastest is used. If several executors are tried, this applies to the fastest only,
    regardless of `autotune_s`. No effect on files."""

    autotune_s: Annotated[float, _Range(0, _DAY_S)] = 120.0
    """If several executors are tried, no executor except eager is started after this many seconds."""

    measure_parts: bool = False
    """Also measure, for the report, what plan, kernels and runtime are worth by themselves, and the time of
    each call of the rewritten graph. Builds the graph twice more, and takes `measure_ms` for each part, or
    the time of twenty calls."""

    def __post_init__(self) -> None:
        """Validate every field, and that plans can be chosen; raise OptionsError on failure."""
        super().__post_init__()
        if not self.measure and (self.measure_plans > 1 or self.measure_parts):
            raise OptionsError(
                "nothing is measured without measure",
                expected="measure=True",
                got=f"measure=False, measure_plans={self.measure_plans}, measure_parts={self.measure_parts}",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoweringOptions(_Common):
    """What an executor reads when it makes a callable of the rewritten graph."""

    weights: Weights = "check"
    """What is assumed about weights: "check" caches expressions over them and checks at every call whether a
    weight has changed; "live" evaluates them at every call; with "frozen" the caller guarantees that neither
    weights nor other attributes of the model ever change and that no other instance of the model shares the
    compiled code."""

    release_weights: bool = False
    """With "frozen" and the eager executor: if the graph runs on packed copies of weights, the originals move
    to unnamed files and their memory is freed. They are read back when accessed, for example by `state_dict`;
    the first access to each is as slow as the disk."""

    executor_options: dict[str, Any] | None = None
    """Settings of the executor, by name; its row in `executor_table` describes them."""

    cuda_graphs: bool = False
    """Record calls of the rewritten graph as CUDA graphs, one for each of up to 16 sets of sizes, and replay
    them. For "eager" and "inductor" on CUDA; no effect elsewhere or with `weights="live"`."""

    def __post_init__(self) -> None:
        """Validate every field and their combination; raise OptionsError on failure."""
        super().__post_init__()
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

    def on(self, device_type: str) -> LoweringOptions:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrecisionOptions(_Group):
    """How exact the outputs must be."""

    max_error: float | Literal["bfloat16"] | None = None
    """Largest error of the outputs, relative to float64: calls may then compute in bfloat16 or with 8-bit
    integers, chosen one by one so that the error of the outputs stays within it. "bfloat16" stands for 1.2
    times the error of everything in bfloat16. By default, results are as exact as the original's. Applies to
    each graph of a model that is cut into several; for "eager" on processors with bfloat16 units, and for
    "openvino"."""

    error_metric: str | Callable[[Sequence[Any], Sequence[Any]], float] = "rms"
    """How the error is measured: "rms" is the root mean square of the difference over that of the reference,
    for the worst floating output; "top1" the share of rows whose largest entry is another one; or a function
    that takes the outputs of a graph and those in float64, both as tuples, and returns a number."""

    def __post_init__(self) -> None:
        """Validate both; raise OptionsError on failure."""
        super().__post_init__()
        given: Any = self.max_error
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        is_known = given is None or (isinstance(given, str) and given == "bfloat16")
        if not is_known and not (is_number and 0 < given < math.inf):
            raise OptionsError(
                "option max_error is no error",
                expected='a number above 0, "bfloat16", or None',
                got=f"{given!r} ({type(given).__name__})",
                todo="max_error=1e-2 allows an error of one percent",
            )
        if is_number:
            object.__setattr__(self, "max_error", float(given))
        if not callable(self.error_metric):
            _one_of(ERROR_METRICS, "error_metric", self.error_metric)
        if self.max_error is None and self.error_metric != "rms":
            raise OptionsError(
                "option error_metric has no effect without a budget",
                expected="max_error",
                got=f"error_metric={self.error_metric!r}",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DebugOptions(_Group):
    """Which files show what happened."""

    save_dir: str | None = None
    """Directory in which `before.onnx`, `after.onnx` and `report.json` of each graph are saved."""

    repro_dir: str | None = None
    """Directory in which each failure leaves a folder that reproduces it, see `Report.dump_repro`; by default
    the one named by the environment variable TORCHRLOPT_REPRO_DIR, if any."""


@dataclasses.dataclass(frozen=True, kw_only=True, init=False)
class Options(_Common):
    """User options: those that no single stage owns, and a group for each stage.

    The constructor takes every option by its own name, and by group: `Options(beam_width=4)` and
    `Options(search={"beam_width": 4})` are equal. docs/options.md lists them all.
    """

    executor: Annotated[str, executor_table.choices] = "default"
    """What runs the rewritten graph; `torchrlopt.executor_table.ROWS` lists the executors, with the package
    and the devices that each requires ("onnxruntime", "openvino" and "tensorrt" are extras of this package).
    "auto" plans for each available executor, times all of them on the example inputs and keeps the fastest.
    "default" is eager PyTorch on the CPU, except that ONNX Runtime or OpenVINO is tried first if it is
    installed and predicted to win clearly (many small operators). On CUDA, "default" is TensorRT if it is
    installed and supports the graph, else eager. Files are planned for eager. "by_calls" begins like
    "default", builds what "auto" would time in the background, and lets the program's calls choose; where
    they cannot, it is the same as "auto"."""

    deterministic: bool = False
    """Decide in the first call which code runs later calls of that kind; no timing of later calls changes it.
    Also if `torch.are_deterministic_algorithms_enabled()`."""

    plan: str | None = None
    """Path of a file written by `report.plan.save`: its steps are applied without a search. With
    `executor="default"`, the plan's executor is used."""

    exclude: Collection[str] = ()
    """What is left as it is: modules by path ("encoder.layers.0"), operators ("aten.softmax", or ONNX's name
    "Softmax") and substitutions ("fuse_conv_relu"). Calls of excluded modules and operators run as the
    original's, without our kernels. Of files, substitutions only."""

    while_compiling: WhileCompiling = "wait"
    """What a call of an optimised module does if another thread compiles what it needs: "wait" waits for that
    thread, "original" runs the original model. No effect on `torch.compile` and on files."""

    verify: bool = True
    """Before use, compare the rewritten and the original graph with a float64 reference."""

    search: SearchOptions
    timing: TimingOptions
    lowering: LoweringOptions
    precision: PrecisionOptions
    debug: DebugOptions

    def __init__(self, **given: Any) -> None:
        """Make options from values by name; a missing one takes its default.

        Args:
            **given: values by the names of options. A group is a mapping of such values, or its dataclass.

        Raises:
            OptionsError: a name is unknown, an option has two values, or a value is ill-typed or out of
                range; the message names the nearest valid one.
        """
        flat = flat_options(given)
        own = {name: flat.get(name, _DEFAULTS[name]) for name in _NAMES[Options]}
        for name, value in own.items():
            object.__setattr__(self, name, value)
        for name, kind in _GROUPS.items():
            values = {each: value for each, value in (own | flat).items() if each in _NAMES[kind]}
            object.__setattr__(self, name, kind(**values))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Validate the options of the whole and their combination; raise OptionsError on failure."""
        given: Any = self.exclude
        names = (given,) if isinstance(given, str) else given
        if not isinstance(names, list | tuple | set | frozenset) or not all(
            isinstance(each, str) for each in names
        ):
            raise OptionsError("option exclude has the wrong type", expected="names", got=repr(given))
        object.__setattr__(self, "exclude", tuple(sorted(set(names))))
        super().__post_init__()
        _check_instructions()
        if self.tries_all and not self.timing.measure:
            raise OptionsError(
                "the executor is chosen by measurement",
                expected="measure=True",
                got=f"executor={self.executor!r}, measure=False",
            )
        if self.precision.max_error is not None and self.numerics == "strict":
            raise OptionsError(
                "an error budget allows more than rounding",
                expected="numerics='real'",
                got=f"numerics='strict', max_error={self.precision.max_error!r}",
            )
        if self.tries_all and self.plan is not None:
            raise OptionsError(
                "a plan that is given was made for one executor",
                expected="that one, or the name of another",
                got=f"executor={self.executor!r}",
                todo="leave executor out: the plan names it",
            )

    @property
    def tries_all(self) -> bool:
        """Whether all executors are tried."""
        return self.executor in ("auto", "by_calls")

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Options:
        """Make options from names and values; see the constructor."""
        return cls(**flat_options(given))

    def as_dict(self) -> dict[str, Any]:
        """Return the values of all options by name, without groups."""
        parts = [self, *(getattr(self, name) for name in _GROUPS)]
        return {name: getattr(part, name) for part in parts for name in _NAMES[type(part)]}

    def search_key(self) -> dict[str, Any]:
        """Return the options that the plan depends on: part of the plan store's key."""
        names = {*_NAMES[SearchOptions], *_PLANNED_FOR} - {*_NOT_IN_KEY}
        return {name: value for name, value in self.as_dict().items() if name in names}


class OptionsDict(TypedDict, total=False):
    """The options by name, for type checkers and editors; `Options` says what they mean."""

    executor: str
    plan: str | None
    exclude: Collection[str]
    verify: bool
    while_compiling: WhileCompiling
    deterministic: bool
    mode: str | None
    numerics: Numerics
    on_error: OnError
    cache: bool
    searcher: str
    budget_ms: float
    budget_steps: int
    beam_width: int
    alpha: float
    seed: int
    prices: Prices
    agent: str | None
    measure: bool
    measure_ms: float
    min_gain: float
    measure_plans: int
    autotune_s: float
    measure_parts: bool
    weights: Weights
    release_weights: bool
    executor_options: dict[str, Any] | None
    cuda_graphs: bool
    save_dir: str | None
    repro_dir: str | None
    max_error: float | Literal["bfloat16"] | None
    error_metric: str | Callable[[Sequence[Any], Sequence[Any]], float]
    search: Mapping[str, Any] | SearchOptions
    timing: Mapping[str, Any] | TimingOptions
    lowering: Mapping[str, Any] | LoweringOptions
    precision: Mapping[str, Any] | PrecisionOptions
    debug: Mapping[str, Any] | DebugOptions


_GROUPS: dict[str, type[_Group]] = {
    "search": SearchOptions,
    "timing": TimingOptions,
    "lowering": LoweringOptions,
    "precision": PrecisionOptions,
    "debug": DebugOptions,
}

_PLANNED_FOR = ("exclude", "executor", "executor_options", "cuda_graphs", "weights", "measure_plans")
"""The plan also depends on these options, in addition to the searcher's own."""

_NOT_IN_KEY = ("agent", "on_error", "cache")
"""Options of the searcher that are not in the plan store's key: it has the contents of the agent and of the
library instead, and the others do not change a plan."""


_KINDS: tuple[type[_Group], ...] = (Options, *_GROUPS.values())

_NAMES = {
    kind: tuple(field.name for field in dataclasses.fields(kind) if field.name not in _GROUPS)
    for kind in _KINDS
}
"""The names of the options in each group, and of those in none."""

_DEFAULTS: dict[str, Any] = {name: getattr(kind, name) for kind, names in _NAMES.items() for name in names}


def flat_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the names of options, without groups.

    Args:
        given: values by name; a group is a mapping of such values, or its dataclass, whose defaults give way.
            "mode" is one of `MODES`.

    Raises:
        OptionsError: a name is unknown, or an option has two values.
    """
    mode = given.get("mode")
    if mode is not None:
        _one_of([each for each in MODES if each], "mode", mode)
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "mode":
            continue
        if name in _GROUPS and isinstance(value, _GROUPS[name]):
            value = {each: getattr(value, each) for each in _NAMES[_GROUPS[name]]}
            value = {each: inside for each, inside in value.items() if inside != _DEFAULTS[each]}
        if name in _GROUPS and not isinstance(value, Mapping):
            raise OptionsError(
                f"option {name} has the wrong type",
                expected=f"a mapping of {', '.join(_NAMES[_GROUPS[name]])}",
                got=f"{value!r} ({type(value).__name__})",
            )
        inner = value if name in _GROUPS else {name: value}
        known = _NAMES[_GROUPS[name]] if name in _GROUPS else (*_DEFAULTS, *_GROUPS)
        for each in inner:
            if each not in known:
                raise OptionsError(
                    f"unknown option {each!r}",
                    where=f"options of {name}" if name in _GROUPS else "",
                    expected=f"one of {', '.join(known)}",
                    got=each,
                    todo=f"did you mean {nearest(str(each), known)!r}?",
                )
            if each in found and found[each] != inner[each]:
                raise OptionsError(f"option {each} is given twice", got=f"{found[each]!r}, {inner[each]!r}")
            found[each] = inner[each]
    return {**MODES[mode], **found}


@functools.cache
def _hints(kind: type[_Group]) -> dict[str, Any]:
    """Types of the fields with their valid values."""
    return typing.get_type_hints(kind, include_extras=True)


def nearest(word: str, valid: Iterable[str]) -> str:
    """The entry of `valid` closest to `word` by difflib's ratio, ignoring case."""
    return max(valid, key=lambda name: difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio())


def _checked(name: str, hint: Any, value: Any) -> Any:
    """Return `value` converted to the type `hint`, or raise OptionsError."""
    kind, *valid = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if typing.get_origin(kind) is Literal:
        return _one_of(typing.get_args(kind), name, value)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        if value is None:
            return None
        kinds = [part for part in typing.get_args(kind) if part is not type(None)]
        if len(kinds) > 1:
            return value  # its group validates it
        (kind,) = kinds
    kind = typing.get_origin(kind) or kind
    # bool is a subclass of int, but `seed=True` is a mistake; an int is a valid float.
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf if value > 0 else -math.inf
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise OptionsError(
            f"option {name} has the wrong type",
            expected=kind.__name__,
            got=f"{value!r} ({type(value).__name__})",
            todo=f"the default is {_DEFAULTS[name]!r}",
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionsError(f"option {name} must be a finite number", expected="a finite number", got=value)
    for each in valid:
        if not isinstance(each, _Range):
            _one_of(each(), name, value)
        elif not each.minimum <= value <= each.maximum:
            raise OptionsError(
                f"option {name} is out of range",
                expected=f"{each.minimum} to {each.maximum}",
                got=value,
                todo=f"leave it out for the default, {_DEFAULTS[name]!r}",
            )
    return value


def _one_of(choices: Sequence[str], name: str, value: Any) -> Any:
    """Return `value` if it is one of the choices, or raise OptionsError."""
    if value in choices:
        return value
    raise OptionsError(
        f"option {name} has no such value",
        expected=f"one of {', '.join(choices)}",
        got=repr(value),
        todo=f"did you mean {nearest(value, choices)!r}?" if isinstance(value, str) else "",
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
