"""Graph fingerprints: graphs with equal fingerprints are assumed to run equally fast."""

from __future__ import annotations

import hashlib

from torchrlopt import _C

_ORDERLESS = {"Add", "Concat", "Equal", "Max", "Min", "Mul"}  # the order of their inputs is ignored
_JOINED_SIZES = {"sizes"}  # attributes that list the sizes of concatenated parts


def fingerprint(graph: _C.Graph) -> str:
    """Hash of operators, weights and connections; sixteen hexadecimal digits.

    It ignores the order in which parts are concatenated and which output of a split is used where: only the
    types of split outputs count. The order of operator inputs counts, except for `_ORDERLESS`.

    Substitutions that merge operators put them in graph order. So two graphs that were equal up to node
    numbering before a merge differ afterwards in the order of the concatenated parts; no machine can tell
    them apart.
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
        # Names of constants carry no information: substitutions create unnamed ones, and parsing names them.
        leaf = node["name"] if not node["inputs"] and node["op"] != "Constant" else ""
        known[id_] = _digest((node["op"], attrs, sorted(map(str, node["types"])), inputs, leaf))
    return _digest(
        (sorted(known.values()), [known[value[0]] for value in graph.outputs if value is not None])
    )


def _digest(told: object) -> str:
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()
