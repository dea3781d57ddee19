"""Makes graphs a few substitutions away from a given one, such as searches meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError

_MAX_REFUSALS = 50  # in a row; then nothing can be applied any more


def walk(graph: _C.Graph, library: _C.Library, seed: int) -> Iterator[_C.Graph]:
    """Random steps without end, or until nothing applies.

    First a substitution is drawn among those that match, then one of its locations: rare ones get their turn.

    Args:
        graph: where the walk starts.
        library: the substitutions.
        seed: of the walk; the same seed takes the same steps.

    Yields:
        The graph after each step.
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
    """The graph after a random part of a plan and a random number of random steps.

    Random steps alone seldom get far from where they start; a search goes all the way.

    Args:
        graph: where the plan starts.
        library: the substitutions.
        plan: steps of some search, by name and location; every second seed takes the first few of them.
        seed: decides number and choice of the steps.
        max_steps: largest number of random steps.

    Returns:
        The graph, and how many steps led to it.
    """
    rng = random.Random(~seed)
    taken = rng.randint(0, len(plan)) if seed % 2 else 0
    graph = _C.replay(graph, library, plan[:taken])
    for step in itertools.islice(walk(graph, library, seed), rng.randint(1, max_steps)):
        graph, taken = step, taken + 1
    return graph, taken
