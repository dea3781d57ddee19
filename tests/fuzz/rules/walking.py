"""Random legal walks over the library, and the reduction of a failing one to one step of a small graph."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from torchrlopt import _C
from torchrlopt.errors import ModelFormatError, SubstitutionError

Step = tuple[str, int]
Differs = Callable[[_C.Graph, _C.Graph], str]
"""How two graphs differ; empty where they agree."""

_LEAVES = ("Input", "Weight", "Constant")
_MAX_OPERATORS = 400  # some substitutions expand


class Walk:
    """A walk that has been taken.

    Attributes:
        graphs: the first one and the one after each step.
        steps: by name and location.
    """

    def __init__(self, graph: _C.Graph) -> None:
        self.graphs = [graph]
        self.steps: list[Step] = []

    @property
    def last(self) -> _C.Graph:
        """Where it has led to."""
        return self.graphs[-1]

    def step(self, library: _C.Library, name: str, location: int) -> bool:
        """Take a step; False where it would change a type, and is refused."""
        try:
            graph = library.apply(self.last, name, location)
        except SubstitutionError:
            return False
        graph.check()
        self.graphs.append(graph)
        self.steps.append((name, location))
        return True


def walk(
    graph: _C.Graph, library: _C.Library, first: Sequence[str], draw: random.Random, max_steps: int
) -> Walk:
    """Random steps until nothing applies.

    Args:
        graph: where it starts.
        library: the substitutions.
        first: names of those that are taken as soon as they match, in this order as far as that goes.
        draw: chooses the others: a substitution among those that match, then one of its locations.
        max_steps: most steps.
    """
    taken = Walk(graph)
    matches = _C.MatchSet(graph, library)
    wanted = list(first)
    while len(taken.steps) < max_steps and taken.last.num_operators <= _MAX_OPERATORS:
        counts = Counter(match["name"] for match in matches.matches(library))
        if not any(taken.step(library, *step) for step in _candidates(counts, wanted, draw)):
            break
        name = taken.steps[-1][0]
        if name in wanted:
            wanted.remove(name)
        matches = matches.after(taken.last, library)
    return taken


def _candidates(counts: Counter[str], wanted: Sequence[str], draw: random.Random) -> Iterator[Step]:
    """All matches once, in the order in which they are tried."""
    hurried = [name for name in wanted if name in counts]
    others = sorted(counts.keys() - set(hurried))
    for name in [*hurried, *draw.sample(others, len(others))]:
        for location in draw.sample(range(counts[name]), counts[name]):
            yield name, location


def shrink(taken: Walk, library: _C.Library, differs: Differs) -> tuple[_C.Graph, list[Step]]:
    """A small graph with few steps that still goes wrong.

    Args:
        taken: its last graph differs from its first.
        library: the substitutions.
        differs: says so.

    Returns:
        A graph and the steps: one, where one alone goes wrong, at its only interesting location.
    """
    for before, after, (name, _) in zip(taken.graphs, taken.graphs[1:], taken.steps, strict=False):
        if differs(before, after):
            return _shrunk(before, library, name, differs)
    for number, graph in enumerate(taken.graphs[1:], 1):
        if differs(taken.graphs[0], graph):
            return taken.graphs[0], taken.steps[:number]
    return taken.graphs[0], taken.steps


def wrong_location(graph: _C.Graph, library: _C.Library, name: str, differs: Differs) -> int | None:
    """A location at which a substitution goes wrong."""
    for location in range(len(library.matches(graph, name))):
        try:
            after = library.apply(graph, name, location)
        except SubstitutionError:
            continue
        if differs(graph, after):
            return location
    return None


def _shrunk(graph: _C.Graph, library: _C.Library, name: str, differs: Differs) -> tuple[_C.Graph, list[Step]]:
    """Outputs left out, and operators replaced by inputs, as long as it still goes wrong."""

    def goes_wrong(candidate: _C.Graph) -> bool:
        return wrong_location(candidate, library, name, differs) is not None

    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(graph):
            if goes_wrong(candidate):
                graph, is_smaller = candidate, True
                break
    location = wrong_location(graph, library, name, differs)
    assert location is not None, "the step that was seen to go wrong"
    return graph, [(name, location)]


def _smaller(graph: _C.Graph) -> Iterator[_C.Graph]:
    outputs = list(graph.outputs)
    for left_out in range(len(outputs)):
        if len(outputs) > 1:
            yield rebuilt(graph, [value for i, value in enumerate(outputs) if i != left_out], ())
    for at, value in enumerate(outputs):  # what the operator behind an output reads, in its place
        for read in graph.node(value[0])["inputs"] if value is not None else ():
            if read is not None and graph.node(read[0])["op"] not in _LEAVES and read not in outputs:
                yield rebuilt(graph, [*outputs[:at], read, *outputs[at + 1 :]], ())
    for node_id in graph.topological_order():
        if graph.node(node_id)["op"] not in _LEAVES:
            try:
                yield rebuilt(graph, outputs, (node_id,))
            except ModelFormatError:
                continue  # its outputs have types that no input may have


def rebuilt(graph: _C.Graph, outputs: Sequence[tuple[int, int] | None], cut: Collection[int]) -> _C.Graph:
    """The part of a graph that some outputs need, with inputs in place of the operators in `cut`."""
    builder = _C.GraphBuilder()
    made: dict[tuple[int, int], tuple[int, int]] = {}
    needed = _needed(graph, outputs, cut)
    for node_id in graph.topological_order():
        if node_id not in needed:
            continue
        node = graph.node(node_id)
        if node_id in cut or node["op"] in ("Input", "Weight"):
            is_weight = node["op"] == "Weight" or (node_id in cut and node["is_static"])
            for index, type_ in enumerate(node["types"]):
                name = f"cut{node_id}_{index}" if node_id in cut else node["name"]
                made[node_id, index] = (builder.add_input(name, type_, is_weight), 0)
            continue
        inputs = [None if each is None else made[tuple(each)] for each in node["inputs"]]
        if node["op"] == "Constant":
            new = builder.add_leaf("Constant", inputs, node["attrs"], node["types"])
        else:
            new = builder.add_node(node["op"], inputs, node["attrs"])
        made |= {(node_id, index): (new, index) for index in range(len(node["types"]))}
    kept = [made[value] for value in outputs if value is not None]
    builder.set_outputs(kept, [f"out{i}" for i in range(len(kept))])
    return builder.finish()


def _needed(graph: _C.Graph, outputs: Sequence[tuple[int, int] | None], cut: Collection[int]) -> set[int]:
    needed: set[int] = set()
    todo = [value[0] for value in outputs if value is not None]
    while todo:
        node_id = todo.pop()
        if node_id in needed:
            continue
        needed.add(node_id)
        if node_id not in cut:
            todo += [each[0] for each in graph.node(node_id)["inputs"] if each is not None]
    return needed
