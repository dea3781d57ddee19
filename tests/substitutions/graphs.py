"""Graphs in one line of text, for the tests of the library."""

from __future__ import annotations

from torchrlopt import _C


def statements(lines: str) -> list[str]:
    """A semicolon outside brackets ends a statement."""
    depth, parts = 0, [""]
    for letter in lines:
        depth += (letter in "([") - (letter in ")]")
        if letter == ";" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def graph_of(inputs: str, lines: str, outputs: str = "y") -> _C.Graph:
    """The graph of statements such as `t = Add(a, b); y = Relu(t)`."""
    body = "\n  ".join(statements(lines))
    return _C.parse_graph(f"graph ({inputs}) {{\n  {body}\n  return {outputs}\n}}")
