"""Rule-directed graphs: every substitution planted in random graphs, then walks that begin with it.

Graph number i holds `PLANTS` patterns; over all graphs each substitution is planted equally often. The walk
begins with one of them, applies the others if they still match, and continues at random.
"""

from __future__ import annotations

import functools
import random
from collections import Counter

from tests.fuzz.kept import Case, format_case
from tests.fuzz.outcome import Outcome
from tests.fuzz.rules.comparing import Numbers, compare, is_same_algebra
from tests.fuzz.rules.garden import Garden
from tests.fuzz.rules.walking import Walk, shrink, walk
from torchrlopt import _C, _tools
from torchrlopt.substitutions import load_library

PLANTS = 10  # patterns in a graph
MAX_STEPS = 20
_BATCH = 8  # instances drawn at a time
_BITS_EVERY = 8  # so many graphs to one that is walked by exact substitutions only, and compared bit for bit


class RulesFuzzer:
    """See the module.

    Args:
        seed: of all choices.
        library: the substitutions; by default all that there are.
    """

    def __init__(self, seed: int, library: _C.Library | None = None) -> None:
        self.library = library or load_library()
        self._seed = seed
        exact = [name for name in self.library.names if self.library.is_exact(name)]
        self._order = self._shuffled(self.library.names)
        self._exact_order = self._shuffled(exact)
        self._exact_library = _C.Library("".join(f"{self.library.text(name)}\n" for name in exact))

    def run(self, index: int) -> Outcome:
        """Plant, walk, compare."""
        in_bits = index % _BITS_EVERY == _BITS_EVERY - 1 and len(self._exact_order) > 0
        order = self._exact_order if in_bits else self._order
        library = self._exact_library if in_bits else self.library
        draw = random.Random(f"{self._seed}/{index}")
        number = index // _BITS_EVERY if in_bits else index - index // _BITS_EVERY
        plants = [divmod(number * PLANTS + i, len(order)) for i in range(PLANTS)]
        names = [order[place] for _, place in plants]
        graph = self._plant([self._instance(order[place], turn) for turn, place in plants], draw)
        first, others = names[0], names[1:]
        draw.shuffle(others)
        taken = walk(graph, library, [first, *others], draw, MAX_STEPS)
        outcome = self._judge(taken, index, ("special",) if in_bits else ("signed", "positive"))
        outcome.counts["began with what was planted"] += bool(taken.steps) and taken.steps[0][0] == first
        outcome.counts["steps"] += len(taken.steps)
        return outcome

    def _plant(self, instances: list[_C.Graph | None], draw: random.Random) -> _C.Graph:
        garden = Garden(draw)
        for instance in instances:
            if instance is not None:
                garden.surround(garden.plant(instance))
                garden.grow(draw.randint(0, 2))
        garden.grow(draw.randint(0, 3))
        return garden.finish()

    def _instance(self, name: str, turn: int) -> _C.Graph | None:
        """Another instance of the pattern in each turn."""
        drawn = self._instances(name, turn // _BATCH)
        return drawn[turn % len(drawn)] if drawn else None

    @functools.lru_cache(maxsize=2000)  # noqa: B019 - a fuzzer lives as long as its process
    def _instances(self, name: str, batch: int) -> list[_C.Graph]:
        drawn = _tools.instances(self.library, name, _BATCH, seed=self._seed * 1_000_003 + batch)
        return [_C.parse_graph(each["graph"]) for each in drawn]

    def _shuffled(self, names: list[str]) -> list[str]:
        return random.Random(self._seed).sample(names, len(names))

    def _judge(self, taken: Walk, index: int, kinds: tuple[Numbers, ...]) -> Outcome:
        """Compare the first graph with the last one."""
        counts: Counter[str] = Counter()
        for numbers in kinds:
            verdict = compare(taken.graphs[0], taken.last, index, numbers)
            counts[f"decided by {verdict.by}"] += 1
            if verdict.difference:
                return Outcome("wrong", verdict.difference, self._case(taken, index, numbers), counts)
        counts["equal modulo a prime"] += is_same_algebra(taken.graphs[0], taken.last, index) is True
        return Outcome("right", counts=counts)

    def _case(self, taken: Walk, index: int, numbers: Numbers) -> str:
        def differs(before: _C.Graph, after: _C.Graph) -> str:
            return compare(before, after, index, numbers).difference

        graph, steps = shrink(taken, self.library, differs)
        told = "; ".join(f"{name} {location}" for name, location in steps)
        return format_case("rules", {"numbers": numbers, "data": str(index), "steps": told}, graph.text())


def replay(case: Case) -> str:
    """How a kept case goes wrong; empty where it does not.

    A step that the library refuses by now ends the walk: that is how some are mended.
    """
    library = load_library()
    taken = Walk(_C.parse_graph(case.body))
    for step in case.fields["steps"].split("; "):
        name, location = step.rsplit(" ", 1)
        if library.find(name) < 0 or not taken.step(library, name, int(location)):
            break
    numbers = case.fields["numbers"]
    assert numbers in ("positive", "signed", "special")
    return compare(taken.graphs[0], taken.last, int(case.fields["data"]), numbers).difference
