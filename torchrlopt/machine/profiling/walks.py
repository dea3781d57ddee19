"""Generates graphs a few substitutions away from a given one, like those that searches visit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError

_MAX_REFUSALS = 50  # in a row; then assume that nothing applies any more


def walk(graph: _C.Graph, library: _C.Library, seed: int) -> Iterator[_C.Graph]:
    """Yield graphs along random steps without end, or until nothing applies.

    Each step first draws one of the matching substitutions, then one of its locations, so that rare
    substitutions are taken as often as common ones.
    """
    rng = random.Random(seed)
    matches = _C.MatchSet(graph, library)
    refusals = 0
    while refusals < _MAX_REFUSALS:
        locations: dict[str, int] = {}
        for match in matches.matches(library):
            locations[match["name"]] = locations.get(match["name"], 0) + 1
        if not locations:
            return
        name = rng.choice(sorted(locations))
        try:
            graph = library.apply(graph, name, rng.randrange(locations[name]))
        except SubstitutionError:
            refusals += 1
            continue
        refusals = 0
        matches = matches.after(graph, library)
        yield graph


def variant(
    graph: _C.Graph, library: _C.Library, plan: Sequence[tuple[str, int]], seed: int, max_steps: int
) -> tuple[_C.Graph, int]:
    """Apply a random prefix of a plan, then a random number of random steps.

    Random steps alone seldom get far from the start; a search does.

    Odd seeds apply a prefix of the plan.

    Returns:
        The graph and the number of steps that produced it.
    """
    rng = random.Random(~seed)
    taken = rng.randint(0, len(plan)) if seed % 2 else 0
    graph = _C.replay(graph, library, plan[:taken])
    for step in itertools.islice(walk(graph, library, seed), rng.randint(1, max_steps)):
        graph, taken = step, taken + 1
    return graph, taken
