"""A saved model, as a module."""

from __future__ import annotations

import logging
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.artefact.calls import Json, damaged, fields
from torchrlopt.artefact.convention import Arguments, Results, none_fits, signature
from torchrlopt.artefact.file import Held
from torchrlopt.artefact.graph import StoredGraph
from torchrlopt.artefact.sampled import MetricOf, Sampled
from torchrlopt.errors import UnsupportedError
from torchrlopt.plain_text import printable
from torchrlopt.torch_private.modes import is_dispatched, is_traced, is_transformed, uncompiled

logger = logging.getLogger("torchrlopt")

PACKING = 3
"""The layouts of packed weights and the numbers of kernels: bump it when they change within a version."""


def stamp() -> dict[str, Json]:
    """Return what packed weights and the calls that read them depend on."""
    versions = {name: metadata.version(name) for name in ("torchrlopt", "torch")}
    return {**versions, "instructions": _C.kernel_instructions(), "packing": PACKING}


class SavedModel(torch.nn.Module):
    """A model that `save` wrote, for inference; made by `load`.

    It takes the arguments of the model's `forward`. Tensors must have the sizes and types of a saved call;
    other arguments must be equal to those of that call. It has no parameters and records no gradients.
    Copies share its weights; it cannot be pickled.

    Args:
        held: the file; untrusted.
        metric_of: returns the metric of an error budget by its name.

    Attributes:
        report: what `save` returned, as a mapping, and under "rebuilt" why the weights were packed again on
            loading; empty if they were not.

    Raises:
        ModelFormatError: the file is malformed.
    """

    def __init__(self, held: Held, metric_of: MetricOf) -> None:
        super().__init__()
        packed_for, graphs, report = fields(held.content, stamp=dict, graphs=list, report=dict)
        if not graphs:
            raise damaged("there is no graph")
        here = stamp()
        differing = [key for key in here if packed_for.get(key) != here[key]]
        rebuilt = ", ".join(
            f"{key} {str(packed_for.get(key))[:40]!r} on saving, {here[key]!r} here" for key in differing
        )
        self.report: dict[str, Any] = {**report, "rebuilt": rebuilt}
        if rebuilt:
            logger.warning("weights are packed again, which takes seconds: %s", printable(rebuilt))
        self._graphs = [_Graph(each, held, bool(differing), metric_of) for each in graphs]
        self._known: dict[Any, _Graph] = {}
        """The graphs of former calls."""
        self.train(False)

    @uncompiled
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the saved model computes.

        Raises:
            UnsupportedError: the call differs from all that the model was saved for; or autocast is on, or a
                gradient with respect to an argument may be requested; or the call is traced, transformed,
                or seen by a dispatch mode.
        """
        if is_traced() or is_dispatched():
            raise UnsupportedError(
                "a saved model cannot be traced, nor seen by dispatch modes",
                todo="call it outside of them: its kernels are no operators that they see",
            )
        if is_transformed():
            raise UnsupportedError(
                "a saved model takes part in no transform of torch.func and no forward-mode differentiation",
                todo="call the original model there",
            )
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                raise UnsupportedError(
                    "a saved model does not run under autocast",
                    todo="save the model in the lower precision, or leave autocast for the call",
                )
        graph, tensors = self._chosen(args, kwargs)
        if not torch.is_grad_enabled():
            return graph.run(tensors)
        if any(each.requires_grad for each in tensors):
            raise UnsupportedError(
                "a saved model records no gradients",
                todo="call it under torch.no_grad(), or detach its arguments",
            )
        with torch.no_grad():
            return graph.run(tensors)

    def _chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Graph, list[torch.Tensor]]:
        """Return the graph for a call, with the tensors of the call."""
        if len(self._graphs) == 1:
            return self._graphs[0], self._graphs[0].arguments.match(args, kwargs)
        key = signature((args, kwargs))
        known = self._known.get(key)
        errors: list[UnsupportedError] = []
        for graph in self._graphs if known is None else (known, *self._graphs):
            try:
                tensors = graph.arguments.match(args, kwargs)
            except UnsupportedError as error:
                errors.append(error)
            else:
                self._known[key] = graph
                return graph, tensors
        raise none_fits(errors)

    def extra_repr(self) -> str:
        """Describe the calls that it takes."""
        return "\n".join(
            ", ".join(f"{each.dtype} {list(each.shape)}" for each in graph.arguments.facts)
            for graph in self._graphs
        )


class _Graph:
    """One graph of a file, with what its calls take and return."""

    def __init__(self, content: Json, held: Held, is_for_others: bool, metric_of: MetricOf) -> None:
        arguments, results, lowered, methods, is_real, packed, budgets = fields(
            content,
            arguments=dict,
            results=dict,
            lowered=dict,
            methods=list,
            is_real=bool,
            packed=dict,
            budgets=list,
        )
        self.arguments = Arguments(arguments)
        num_given, tensor = len(self.arguments.facts), held.tensor
        if is_for_others:
            from torchrlopt.artefact.lowered import rebuilt  # heavy

            packed, made = rebuilt(lowered, methods, self.arguments.facts, is_real, tensor)
            tensor = lambda number: made[number]  # noqa: E731  # a function, as the file's
        if len(budgets) > 1:
            raise damaged("a graph has several budgets")
        graph = StoredGraph(packed, num_given, tensor)
        self._graph = Sampled(graph, budgets[0], num_given, held.tensor, metric_of) if budgets else graph
        self._results = Results(results, self._graph.num_outputs + num_given)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Graph:
        return self  # what it computes never changes, but for a budget

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "a loaded model cannot be pickled", todo="pass on the path of its file, and load it there"
        )

    def run(self, tensors: list[torch.Tensor]) -> Any:
        return self._results.build([*self._graph(tensors), *tensors])


def load(path: Path, metric_of: MetricOf) -> SavedModel:
    """Load a file; see `SavedModel`.

    Raises:
        ModelFormatError: there is no such file, or `save` did not write it.
    """
    try:
        return SavedModel(Held(path), metric_of)
    except RecursionError as error:
        raise damaged("it is nested too deep") from error
