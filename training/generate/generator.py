"""The generator of substitutions: enumerate, pair, test, prune, generalise.

The core enumerates small graphs and finds equivalent pairs. This module judges each direction of a pair: does
the library already cover it, can it ever pay off, does it hold beyond the shapes it was found with. The
remaining ones become entries of the library. The state is saved during the run, so that an interrupted run
can resume.
"""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from torchrlopt import _C, _tools
from torchrlopt.errors import OptionsError, SubstitutionError
from torchrlopt.storage.files import write_whole
from training.generate import _enumerate
from training.generate.generalise import NAME, generalisations
from training.generate.pairs import Pair
from training.generate.worth import (
    MIN_GAIN,
    best_gain,
    is_derivable,
    is_instance,
    is_reached_downhill,
    serves,
)

MAX_LOSS = 0.02  # relative, for a direction that saves nowhere but may enable others
MAX_MODES, MAX_MODES_LARGE = (
    14,
    6,
)  # maximum modes tried, for pairs of up to 4 operators and of more
NUM_BINDINGS = 200  # instances on which a generalisation must hold
NUM_TRIALS = 4  # times `NUM_BINDINGS`, before a mode is accepted
NUM_SEEDS = 6  # times `NUM_BINDINGS`, before a generalisation ships
_FIRST_BINDINGS, _FIRST_ATTEMPTS = 8, 60  # a wrong text fails on few instances
_SAVE_SECONDS = 5.0

#: Counters in the order in which pairs pass them, with descriptions.
COUNTERS = {
    "graphs": "graphs enumerated",
    "fingerprints": "fingerprints",
    "groups": "fingerprints of several graphs",
    "pairs": "candidate pairs",
    "renamed": "- other names of the inputs",
    "common": "- common subgraph",
    "special": "- special case of equal inputs",
    "distinct": "distinct candidates",
    "refuted": "- refuted by the second test",
    "not a substitution": "directions: - no substitution",
    "instance": "directions: - instance of a known one",
    "loses everywhere": "directions: - lose everywhere, or enlarge the graph for nothing",
    "no cost favours it": "directions: - no cost favours either",
    "reached by steps that save": "directions: - reached by steps that save",
    "follows": "directions: - follows from known ones",
    "serves no search": "directions: - serve no search",
    "holds for its shapes only": "directions: - no generalisation holds",
    "kept, saves": "directions kept: save somewhere",
    "kept, enables": "directions kept: enable",
}

Report = Callable[[str, int, int], None]
"""Progress callback: the current task, the amount done, and the total (0: unknown)."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of a run; a state with other parameters cannot be resumed.

    Args:
        depth: operators per side, at most 4.
        seed: of all random data.
        worlds: worlds to enumerate, of `_enumerate.world_names()`.
        num_slices: parts in which fingerprints are joined; more parts take less memory and more time.
        library_hash: of the library that the result is compared with.
    """

    depth: int = 3
    seed: int = 0
    worlds: tuple[str, ...] = ()
    num_slices: int = 1
    library_hash: str = ""


@dataclass
class State:
    """Progress of a run."""

    parameters: Parameters
    counts: Counter[str] = field(default_factory=Counter)
    pairs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by "world/slice"
    judged: int = 0
    accepted: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        content = {**vars(self), "parameters": _plain(self.parameters)}
        write_whole(path, json.dumps(content).encode())

    @classmethod
    def load(cls, path: Path, parameters: Parameters) -> State:
        """The state in the file, or a new one if there is none.

        Raises:
            OptionsError: the file belongs to a run with other parameters.
        """
        if not path.exists():
            return cls(parameters)
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["parameters"] != _plain(parameters):
            raise OptionsError(
                "the saved state belongs to another run",
                where=str(path),
                expected=_plain(parameters),
                got=raw["parameters"],
                todo="give --fresh to start anew",
            )
        raw["parameters"] = parameters
        raw["counts"] = Counter(raw["counts"])
        return cls(**raw)


def _plain(parameters: Parameters) -> dict[str, Any]:
    return {**asdict(parameters), "worlds": list(parameters.worlds)}


def run(
    state: State,
    library_text: str,
    path: Path | None = None,
    report: Report = lambda *_: None,
) -> State:
    """Run a state to completion.

    Args:
        state: new or loaded; changed in place and returned.
        library_text: the existing substitutions, without generated ones.
        path: file for the state; None does not save it.
        report: progress callback.

    Raises:
        KeyboardInterrupt: the saved state contains every completed unit of work.
    """
    started = time.perf_counter() - state.seconds

    def save() -> None:
        state.seconds = time.perf_counter() - started
        if path is not None:
            state.save(path)

    _find_pairs(state, save, report)
    todo = list(_ordered(state))
    judge = Judge(library_text, state)
    saved = time.perf_counter()
    try:
        for number, direction in enumerate(todo[state.judged :], start=state.judged):
            report("judging", number, len(todo))
            judge.judge(direction)
            state.judged = number + 1
            if time.perf_counter() - saved > _SAVE_SECONDS:
                save()
                saved = time.perf_counter()
    finally:
        save()
    return state


def _find_pairs(state: State, save: Callable[[], None], report: Report) -> None:

    parameters = state.parameters
    for world in parameters.worlds:
        for number in range(parameters.num_slices):
            key = f"{world}/{number}"
            if key in state.pairs:
                continue
            report(f"enumerating {world}", number, parameters.num_slices)
            found = _enumerate.enumerate_pairs(
                world, parameters.depth, parameters.seed, number, parameters.num_slices
            )
            state.pairs[key] = found["pairs"]
            counts = found["counts"]
            if number > 0:
                counts["graphs"] = 0  # every slice has the same graphs
            state.counts.update(counts)
            save()


def _ordered(state: State) -> Iterable[Pair]:
    """All directions, small and general pairs first, so that those which follow from them are pruned."""
    found = ((key.partition("/")[0], each) for key, several in state.pairs.items() for each in several)
    pairs = [Pair.from_core(world, each).in_order() for world, each in found]
    worlds = {name: i for i, name in enumerate(state.parameters.worlds)}

    def key(pair: Pair) -> tuple[Any, ...]:
        generality = -len(pair.before.data_inputs)
        return (
            pair.size,
            pair.before.num_ops,
            generality,
            worlds[pair.before.world],
            pair.before.ops,
            pair.after.ops,
        )

    pairs.sort(key=key)
    for pair in pairs:
        yield pair
        yield pair.reversed()


class Judge:
    """Judges directions one by one; accepted ones count as known for the next."""

    def __init__(self, library_text: str, state: State) -> None:
        self._cost = _C.CostModel()  # the core's built-in costs give the same result on every machine
        self._state = state
        self._texts = [
            library_text,
            *(each["text"].replace(NAME, f"c{i}") for i, each in enumerate(state.accepted)),
        ]
        self._library = _C.Library("".join(self._texts))

    def judge(self, pair: Pair) -> None:
        """Count the verdict on a direction and keep it if accepted."""
        verdict, text, gain = self._verdict(pair)
        self._state.counts[verdict] += 1
        if text is None:
            return
        self._state.accepted.append(
            {"text": text, "gain": gain, "world": pair.before.world, "size": pair.size}
        )
        self._texts.append(text.replace(NAME, f"c{len(self._state.accepted) - 1}"))
        self._library = _C.Library("".join(self._texts))

    def _verdict(self, pair: Pair) -> tuple[str, str | None, float]:
        if not pair.is_possible:
            return "not a substitution", None, 0.0
        if is_instance(pair, self._library):
            return "instance", None, 0.0
        gain = best_gain(pair, self._cost)
        pays = gain.value > MIN_GAIN
        if not pays and (gain.value < -MAX_LOSS or not _is_as_small(pair)):
            return "loses everywhere", None, 0.0
        if not pays and best_gain(pair.reversed(), self._cost).value <= MIN_GAIN:
            return "no cost favours it", None, 0.0
        if pays and gain.setting is not None:
            if is_reached_downhill(pair, gain.setting, self._library, self._cost):
                return "reached by steps that save", None, 0.0
        elif is_derivable(pair, self._library):
            return "follows", None, 0.0
        if not serves(pair):
            return "serves no search", None, 0.0
        text = generalise(pair)
        if text is None:
            return "holds for its shapes only", None, 0.0
        return ("kept, saves" if pays else "kept, enables"), text, gain.value


def _is_as_small(pair: Pair) -> bool:
    """Whether there are no more operators after than before, and no new constants."""
    return pair.after.num_ops <= pair.before.num_ops and pair.after.inputs <= pair.before.inputs


def generalise(pair: Pair) -> str | None:
    """The most general text that holds on all tested instances; None if none does."""
    for text in islice(generalisations(pair), MAX_MODES if pair.size <= 4 else MAX_MODES_LARGE):
        if holds(text, _FIRST_BINDINGS, _FIRST_ATTEMPTS) and all(
            holds(text, NUM_BINDINGS, seed=i) for i in range(1, 1 + NUM_TRIALS)
        ):
            return text
    return None


def holds(text: str, bindings: int, max_attempts: int = 20_000, seed: int = 0) -> bool:
    """Whether a text's only substitution holds on this many distinct instances, in all contexts."""
    try:
        library = _C.Library(text)
    except SubstitutionError:
        return False  # the syntax does not allow this text
    result = _tools.verify(library, library.names[0], bindings=bindings, seed=seed, max_attempts=max_attempts)
    return bool(result["ok"] and result["num_bindings"] >= bindings)


def holds_widely(text: str, num_seeds: int = NUM_SEEDS) -> bool:
    """Stricter check before shipping: several times as many instances, since rare shapes are rarely drawn."""
    return all(holds(text, NUM_BINDINGS, seed=seed) for seed in range(num_seeds))


def peak_memory_gib() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
