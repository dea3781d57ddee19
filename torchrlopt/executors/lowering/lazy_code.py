"""Graph modules whose Python code is generated when it is asked for.

`fx.GraphModule` generates it when it is made and whenever its graph is replaced: a tenth of a second for a
ResNet-50, six times on the way to a callable, of which two are run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule


def lazy_module(root: torch.nn.Module | dict[str, Any], graph: fx.Graph) -> fx.GraphModule:
    """A module of the graph, which takes its attributes from `root`."""
    return _LazyGraphModule(root, graph)


def forward_of(module: fx.GraphModule) -> Callable[..., Any]:
    """The function of a module whose graph changes no more, with its code generated."""
    _LazyGraphModule.force_recompile(module)
    forward: Callable[..., Any] = module.forward
    return forward
