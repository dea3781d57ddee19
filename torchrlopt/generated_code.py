"""The one check between an fx graph and the Python source that is generated from it.

torch.fx puts names into the source as they are: the target of a placeholder becomes a parameter, default and
all, the parts of an attribute's path and the keywords of a call become names. So a text from outside that got
there would be run, or would be a SyntaxError. Nothing of a file is put there (inputs are numbered), and every
graph that the package makes a module of passes here, so that this stays true.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator

from torch import fx

from torchrlopt.errors import LoweringError

_WITH_PATHS = frozenset({"get_attr", "call_module", "call_method"})


def checked(graph: fx.Graph) -> fx.Graph:
    """The graph itself, once each text of it that becomes a name in source is known to be one.

    It stands around the graph wherever the package has fx generate code of one
    (`tests/package/test_generated_code.py` looks for such places).

    Raises:
        LoweringError: a text is no identifier, or is a keyword.
    """
    for node in graph.nodes:
        for kind, text in _texts(node):
            if not text.isidentifier() or keyword.iskeyword(text):
                raise LoweringError(
                    "a text that would become source is no name",
                    where=f"{kind} of an fx node",
                    expected="an identifier that is no keyword",
                    got=ascii(text[:80]),
                )
    return graph


def _texts(node: fx.Node) -> Iterator[tuple[str, str]]:
    """Each text of a node that torch.fx writes without quotes, and what it is."""
    yield "the name", node.name
    if node.op == "placeholder":
        yield "the target", str(node.target)
    elif node.op in _WITH_PATHS:
        for part in str(node.target).split("."):
            if not (part.isascii() and part.isdecimal()):  # of a list of modules; it is put in quotes
                yield "a part of the target", part
    for key in node.kwargs:
        yield "a keyword", key
