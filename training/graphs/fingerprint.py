"""When two graphs are one to a machine: they compute the same from the same weights by the same operators."""

from __future__ import annotations

import hashlib

from torchrlopt import _C


def fingerprint(graph: _C.Graph) -> str:
    """Equal for graphs that differ only in the order of inputs and of parts; sixteen hexadecimal digits.

    Substitutions that merge operators put them in the order in which they stand in the graph. So graphs that
    were equal when two of them were merged, but for the numbers of their nodes, differ afterwards in the
    order of what is joined; no machine tells them apart.
    """
    known: dict[int, str] = {}
    for id_ in graph.topological_order():
        node = graph.node(id_)
        attrs = sorted(
            (name, sorted(value) if isinstance(value, list) else value)
            for name, value in node["attrs"].items()
        )
        inputs = sorted(
            (known[value[0]], str(graph.type(value))) for value in node["inputs"] if value is not None
        )
        # A constant's name says nothing: substitutions make them without one, and text gives them one.
        leaf = node["name"] if not node["inputs"] and node["op"] != "Constant" else ""
        known[id_] = _digest((node["op"], attrs, sorted(map(str, node["types"])), inputs, leaf))
    return _digest(
        (sorted(known.values()), [known[value[0]] for value in graph.outputs if value is not None])
    )


def _digest(told: object) -> str:
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()
