"""Validates the names in an fx graph before Python source is generated from it.

torch.fx copies names into the source verbatim: the target of a placeholder becomes a parameter, including any
default, and the parts of an attribute path and the keywords of a call become names. Untrusted text there
would be executed or cause a SyntaxError. The package puts no text from a file there (inputs are numbered); to
enforce that, every graph that it turns into a module passes this check.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator

from torch import fx

from torchrlopt.errors import LoweringError

_WITH_PATHS = frozenset({"get_attr", "call_module", "call_method"})


def checked(graph: fx.Graph) -> fx.Graph:
    """Return the graph after checking that each string that becomes a name in source is a valid one.

    Wrap the graph in this call wherever fx generates code from it (`tests/package/test_generated_code.py`
    checks these places).

    Raises:
        LoweringError: a string is not an identifier, or is a keyword.
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
    """Yield each string of a node that torch.fx writes without quotes, with its role first."""
    yield "the name", node.name
    if node.op == "placeholder":
        yield "the target", str(node.target)
    elif node.op in _WITH_PATHS:
        for part in str(node.target).split("."):
            if not (part.isascii() and part.isdecimal()):  # an index into a ModuleList, which fx quotes
                yield "a part of the target", part
    for key in node.kwargs:
        yield "a keyword", key
