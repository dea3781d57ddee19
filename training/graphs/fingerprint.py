"""When two graphs are taken for one: they take the same time, as far as is known without measuring them."""

from __future__ import annotations

import hashlib

from torchrlopt import _C

_ORDERLESS = {"Add", "Concat", "Equal", "Max", "Min", "Mul"}  # the order of their inputs tells nothing
_JOINED_SIZES = {"sizes"}  # attributes that list the parts of what is joined


def fingerprint(graph: _C.Graph) -> str:
    """Equal for graphs of one set of operators and weights, joined alike; sixteen hexadecimal digits.

    What is left out is the order in which parts are joined, and which part of a split is used where: of its
    outputs only the types are seen. Inputs of operators count in their order, but for `_ORDERLESS`.

    Substitutions that merge operators put them in the order in which they stand in the graph. So graphs that
    were equal when two of them were merged, but for the numbers of their nodes, differ afterwards in the
    order of what is joined; no machine tells them apart.
    """
    known: dict[int, str] = {}
    for id_ in graph.topological_order():
        node = graph.node(id_)
        attrs = sorted(
            (name, sorted(value) if name in _JOINED_SIZES else value) for name, value in node["attrs"].items()
        )
        inputs = [
            ("", "") if value is None else (known[value[0]], str(graph.type(value)))
            for value in node["inputs"]
        ]
        if node["op"] in _ORDERLESS:
            inputs.sort()
        # A constant's name says nothing: substitutions make them without one, and text gives them one.
        leaf = node["name"] if not node["inputs"] and node["op"] != "Constant" else ""
        known[id_] = _digest((node["op"], attrs, sorted(map(str, node["types"])), inputs, leaf))
    return _digest(
        (sorted(known.values()), [known[value[0]] for value in graph.outputs if value is not None])
    )


def _digest(told: object) -> str:
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()
