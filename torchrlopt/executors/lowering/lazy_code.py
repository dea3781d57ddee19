"""Graph modules whose Python code is generated when it is asked for.

`fx.GraphModule` generates it when it is made and whenever its graph is replaced: a tenth of a second for a
ResNet-50, six times on the way to a callable, of which two are run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.graph import PythonCode

from torchrlopt.generated_code import checked
from torchrlopt.torch_private.modules import LazyGraphModule


def lazy_module(root: torch.nn.Module | dict[str, Any], graph: fx.Graph) -> fx.GraphModule:
    """A module of the graph, which takes its attributes from `root`."""
    return _CheckedModule(root, graph)


class _CheckedModule(LazyGraphModule):
    """Checks the names of its graph whenever code is generated, whatever was done to the graph before."""

    def _real_recompile(self) -> PythonCode:
        checked(self.graph)
        return super()._real_recompile()


def forward_of(module: fx.GraphModule) -> Callable[..., Any]:
    """The function of a module whose graph changes no more, with its code generated."""
    LazyGraphModule.force_recompile(module)
    forward: Callable[..., Any] = module.forward
    return forward


def seldom_called(module: fx.GraphModule) -> Callable[..., Any]:
    """A function that does what the module does, whose graph changes no more; mostly it is called once.

    The first call interprets the graph, which takes less time than to generate code. Later ones generate it.
    """
    calls = itertools.count()

    def run(*args: Any) -> Any:
        if next(calls) > 0:
            return forward_of(module)(*args)
        interpreter = fx.Interpreter(module)
        interpreter.extra_traceback = False  # errors are told as they are
        return interpreter.run(*args)

    return run
