"""Graph modules that generate their Python code on demand.

`fx.GraphModule` generates code when it is created and whenever its graph is replaced. That takes a tenth of a
second for a ResNet-50, six times on the way to a callable, and only two of the results are run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.graph import PythonCode

from torchrlopt.generated_code import checked
from torchrlopt.torch_private.modules import LazyGraphModule


def lazy_module(root: torch.nn.Module | dict[str, Any], graph: fx.Graph) -> fx.GraphModule:
    """A module for the graph, which takes its attributes from `root`."""
    return _CheckedModule(root, graph)


class _CheckedModule(LazyGraphModule):
    """Checks the names in its graph whenever code is generated, whatever changed the graph before."""

    def _real_recompile(self) -> PythonCode:
        checked(self.graph)
        return super()._real_recompile()


def forward_of(module: fx.GraphModule) -> Callable[..., Any]:
    """The function of a module whose graph is final, with its code generated."""
    LazyGraphModule.force_recompile(module)
    forward: Callable[..., Any] = module.forward
    return forward


def seldom_called(module: fx.GraphModule) -> Callable[..., Any]:
    """A function for a module whose graph is final and that is mostly called once.

    The first call interprets the graph, which is faster than generating code. Later calls generate it.
    """
    waiting = [fx.Interpreter(module)]  # emptied by the first call

    def run(*args: Any) -> Any:
        try:
            interpreter = waiting.pop()
        except IndexError:
            return forward_of(module)(*args)
        interpreter.extra_traceback = False  # report errors unchanged
        return interpreter.run(*args)

    return run
