"""The graph of a run that trains on a single graph: a model of the suite, or an ONNX file."""

from __future__ import annotations

from pathlib import Path

from baselines import graphs
from baselines.models import NAMES
from torchrlopt import _C
from torchrlopt.errors import OptionsError
from torchrlopt.onnx import files, safety
from torchrlopt.onnx.missing_types import read_with_types


def one_graph(name: str) -> _C.Graph:
    """The graph before any substitution.

    Args:
        name: of a model in `baselines.models.NAMES`, or the path of an ONNX file.

    Raises:
        OptionsError: it is neither.
        RlOptError: the file cannot be read.
    """
    if name in NAMES:
        return graphs.graph_of(name)
    path = Path(name)
    if not path.is_file():
        raise OptionsError(
            "there is no such graph", expected=f"an ONNX file, or one of {', '.join(NAMES)}", got=name
        )
    proto = safety.parse(path)
    return read_with_types(proto, files.prepared(proto, path)).graph
