"""Draws a substitution: before on the left, after on the right. Needs matplotlib and networkx."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchrlopt.errors import UnsupportedError
from torchrlopt.substitutions.proof.rule_text import EACH, Line, Rule, parse_rule

_TENSOR = "#d7e3f4"
_OPERATOR = "#ffe6c7"
_OUTPUT = "#d5efd8"


def draw(text: str, path: Path) -> None:
    """Draws one substitution, as `Library.text` prints it, in a .svg or .png file, which is overwritten.

    Raises:
        UnsupportedError: matplotlib or networkx is not installed, or the file type is not supported.
    """
    if path.suffix not in (".svg", ".png"):
        raise UnsupportedError("no pictures of this kind", expected=".svg or .png", got=path.suffix)
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise UnsupportedError(
            "pictures need matplotlib", todo="pip install 'torchrlopt[pictures]'"
        ) from error
    rule = parse_rule(text)
    height = 1.2 + 0.9 * max(len(_layers(lines)) for lines in (rule.pattern, rule.replacement))
    with plt.rc_context({"svg.hashsalt": rule.name}):  # makes the output reproducible
        figure, axes = plt.subplots(1, 2, figsize=(11, height))
        for axis, title, lines in (
            (axes[0], "before", rule.pattern),
            (axes[1], "after", rule.replacement),
        ):
            _draw_side(axis, title, lines, rule)
        figure.suptitle(rule.name)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _layers(lines: Sequence[Line]) -> dict[str, int]:
    """Longest path, in operators, above each tensor and operator."""
    depth: dict[str, int] = {}
    for number, line in enumerate(lines):
        inputs = [str(name) for name in line.ins if name is not None]
        above = max((depth.setdefault(name, 0) for name in inputs), default=0)
        depth[f"line {number}"] = above + 1
        for out in line.outs:
            depth[out] = above + 2
    return depth


def _draw_side(axis: Any, title: str, lines: Sequence[Line], rule: Rule) -> None:
    import networkx as nx

    graph = nx.DiGraph()
    for name, depth in _layers(lines).items():
        graph.add_node(name, layer=-depth)
    labels = {name: name for name in graph}
    colours = {name: _OUTPUT if name in rule.outputs else _TENSOR for name in graph}
    for number, line in enumerate(lines):
        node = f"line {number}"
        labels[node] = _label(line)
        colours[node] = _OPERATOR
        graph.add_edges_from((str(name), node) for name in line.ins if name is not None)
        graph.add_edges_from((node, out) for out in line.outs)
    places = nx.multipartite_layout(graph, subset_key="layer", align="horizontal")
    axis.set_title(title)
    axis.axis("off")
    axis.margins(0.15)
    nx.draw_networkx_edges(graph, places, ax=axis, node_size=900, arrowsize=10, edge_color="#777777")
    for name, (x, y) in places.items():
        box = {"boxstyle": "round,pad=0.35", "facecolor": colours[name], "edgecolor": "#777777"}
        axis.text(x, y, labels[name], ha="center", va="center", fontsize=8, bbox=box)


def _label(line: Line) -> str:
    """The operator, with its attributes if they fit."""
    if not line.op:
        return "="
    attrs = [
        f"{name}={ast.unparse(value).replace(EACH, '*').replace('_', '')}"
        for name, value in line.attrs.items()
    ]
    text = ", ".join([*attrs, *([f"@{line.rest}"] if line.rest else [])])
    return f"{line.op}\n{text if len(text) <= 34 else text[:33] + '…'}" if text else line.op
