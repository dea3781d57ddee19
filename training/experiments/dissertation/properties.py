"""Table 4.1 of the dissertation: properties of the graphs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from torchrlopt import _C
from torchrlopt.machine.cost.model import COST_CLASSES
from training.experiments.dissertation.libraries import OURS, TASO, library
from training.experiments.experiment import Experiment, Results, table, write_csv
from training.experiments.graphs_of_paper import GRAPHS, SMALL, graph_of, graphs_at
from training.experiments.runs import Run, Scale, Workplace

#: Layers, unique layers and substitutions.
THEIRS = {
    "inception_v3": (43, 12, 56),
    "resnet18": (18, 6, 40),
    "resnet50": (50, 6, 228),
    "squeezenet1_1": (21, 3, 288),
    "toy_bert": (12, 3, 80),
}
_CLASS = "contraction"
_LEAVES = ("Input", "Weight")


@dataclasses.dataclass(frozen=True)
class Properties:
    """What a graph consists of.

    Attributes:
        operators: nodes that compute something.
        edges: values that one operator hands to another.
        layers: convolutions and matrix products.
        unique_layers: those that differ in operator, attributes or sizes.
        depth: operators on the longest way through the graph.
        places: candidates in the graph as it is: places where a substitution of our library fits.
        substitutions: of our library that fit somewhere.
        taso_places: as `places`, of TASO's rules.
        taso_substitutions: as `substitutions`, of TASO's rules.
    """

    operators: int
    edges: int
    layers: int
    unique_layers: int
    depth: int
    places: int
    substitutions: int
    taso_places: int
    taso_substitutions: int


def properties_of(graph: _C.Graph) -> Properties:
    """Of one graph."""
    nodes = {node: graph.node(node) for node in graph.topological_order()}
    operators = {node: entry for node, entry in nodes.items() if entry["op"] not in _LEAVES}
    layers = [entry for entry in operators.values() if COST_CLASSES[entry["op"]].lower() == _CLASS]
    sizes = {
        (each["op"], str(each["attrs"]), *(str(graph.type(value)) for value in each["inputs"]))
        for each in layers
    }
    depth: dict[int, int] = {}
    edges = 0
    for node, entry in operators.items():
        sources = [value[0] for value in entry["inputs"] if value is not None and value[0] in operators]
        edges += len(sources)
        depth[node] = 1 + max((depth[each] for each in sources), default=0)
    counts = [_places(graph, name) for name in (OURS, TASO)]
    places = [number for each in counts for number in (each.total(), len(each))]
    return Properties(len(operators), edges, len(layers), len(sizes), max(depth.values()), *places)


def _places(graph: _C.Graph, rules: str) -> Counter[str]:
    """How often each substitution fits."""
    known = library(rules)
    return +Counter({name: len(known.matches(graph, name)) for name in known.names})


@dataclasses.dataclass(frozen=True)
class PropertiesRun(Run[Properties]):
    """See `Run`."""

    graph: str

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"properties-{self.graph}-{library(OURS).hash[:8]}-{library(TASO).hash[:8]}"

    def make(self, tell: Callable[[], None]) -> Properties:
        """See `Run`."""
        found = properties_of(graph_of(self.graph))
        tell()
        return found

    def read(self, kept: Mapping[str, Any]) -> Properties:
        """See `Run`."""
        return Properties(**kept)


def _runs(scale: Scale, place: Workplace) -> list[PropertiesRun]:
    return [PropertiesRun(name) for name in graphs_at(1.0 if scale.share >= SMALL else scale.share)]


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    found = {run.graph: results.finished.outcome(run) for run in _runs(results.scale, results.place)}
    columns = [field.name for field in dataclasses.fields(Properties)]
    rows = [(name, *dataclasses.astuple(each)) for name, each in found.items()]
    write_csv(folder / "table4.1.csv", ("graph", *columns), rows)
    _plot(found, folder / "table4.1.png")
    lines = []
    for name, each in found.items():
        theirs = THEIRS.get(name, ("", "", ""))
        lines.append(
            (
                GRAPHS[name].title,
                each.operators,
                each.edges,
                each.depth,
                *(each.layers, theirs[0], each.unique_layers, theirs[1]),
                *(each.places, each.substitutions, each.taso_places, each.taso_substitutions, theirs[2]),
            )
        )
    header = (
        "graph", "operators", "edges", "depth", "layers", "theirs", "unique layers", "theirs",
        "places for our library", "of so many substitutions", "places for TASO's rules", "of so many",
        'theirs: "substitutions"',
    )  # fmt: skip
    return [
        "![candidates](table4.1.png)",
        "",
        *table(header, lines),
        "",
        "Layers are convolutions and matrix products, unique if operator, attributes or sizes differ. "
        "Places are counted in the graph as it is, before any step.",
        "",
        *_words(found),
    ]


def _words(found: Mapping[str, Properties]) -> list[str]:
    both = [name for name in found if name in THEIRS]
    ours = sorted(both, key=lambda name: found[name].places)
    theirs = sorted(both, key=lambda name: THEIRS[name][2])
    layers = ", ".join(f"{GRAPHS[name].title} {found[name].layers} ({THEIRS[name][0]})" for name in both)
    return [
        f"- Layers, theirs in brackets: {layers}. Convolutions on shortcuts and the last product are layers "
        "here. The toy BERT of TASO's release has 8 layers of 6 products; 12 are the layers of BERT-base.",
        *_order(ours, theirs),
    ]


def _order(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """Graphs by places, fewest first, where there are several to be compared."""
    if len(ours) < 2:
        return []
    return [
        "- The paper does not say how its substitutions were counted. By ours, fewest first, the order is "
        f"{_list(ours)}; by theirs {_list(theirs)}: "
        + (
            "it agrees."
            if ours == theirs
            else "it does not agree. Their library is another one, and so may be the count: they have most "
            f"in {GRAPHS[theirs[-1]].title}."
        ),
    ]


def _list(names: Sequence[str]) -> str:
    return ", ".join(GRAPHS[name].title for name in names)


def _plot(found: Mapping[str, Properties], path: Path) -> None:
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    panel = figure.subplots()
    titles = [GRAPHS[name].title for name in found]
    places = range(len(titles))
    for shift, (what, values) in enumerate(
        {
            "our library": [each.places for each in found.values()],
            "TASO's rules": [each.taso_places for each in found.values()],
            "the dissertation": [THEIRS.get(name, (0, 0, 0))[2] for name in found],
        }.items()
    ):
        panel.bar([place + 0.27 * (shift - 1) for place in places], values, 0.27, label=what)
    panel.set_xticks(list(places), titles, rotation=30, ha="right", fontsize=8)
    panel.set_ylabel("candidates of the first step")
    panel.legend(fontsize=8)
    figure.savefig(path, dpi=90)


TABLE_4_1 = Experiment(
    "Properties of the graphs",
    "Parker 2021, table 4.1",
    _runs,
    report,
    "Nothing is timed.",
)
