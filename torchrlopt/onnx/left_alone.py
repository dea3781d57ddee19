"""Lists why operators of a file stay opaque, one line per reason, for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torchrlopt.onnx.forms.from_onnx import OPERATORS
from torchrlopt.onnx.opsets import STANDARD_DOMAINS
from torchrlopt.onnx.program import Program


def reasons(program: Program) -> tuple[str, ...]:
    """One line per operator and reason, the most frequent first."""
    graph = program.graph
    nodes = map(graph.node, graph.topological_order())
    counts = Counter(_reason(program, node) for node in nodes if node["op"] == "Opaque")
    return tuple(f"{count} x {line}" for line, count in counts.most_common())


def _reason(program: Program, node: Mapping[str, Any]) -> str:
    name = str(node["attrs"]["op"]).partition("#")[0]
    domain, _, op = name.partition("::")
    types = [program.graph.type(value) for value in node["inputs"] if value is not None]
    if domain not in STANDARD_DOMAINS:
        reason = "an operator of another domain"
    elif op not in OPERATORS:
        reason = "no substitution is about this operator"
    elif any(dims is None for _, dims in types):
        reason = "the shape of an operand is not known"
    else:
        reason = "this form of the operator is not rewritten"
    return f"{name} left alone: {reason}"
