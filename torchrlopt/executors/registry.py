"""Finds executors, by name or by what can run here.

`torchrlopt.executor_table` lists them. The module of an executor is imported when it is asked for by name:
asking for eager PyTorch never loads another runtime.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from torchrlopt import executor_table
from torchrlopt.errors import OptionsError

if TYPE_CHECKING:
    import onnx_ir

    from torchrlopt.capture.captured import Captured
    from torchrlopt.options import Options


Refusals: TypeAlias = "Mapping[onnx_ir.Node, str]"
"""The nodes that an executor does not take, each with the reason."""


class Lowered(Protocol):
    """A lowered graph: takes the inputs of `Captured.aten` in order, weights included; gives its outputs."""

    @property
    def num_evaluations(self) -> int:
        """How often expressions over weights have been evaluated.

        A call with weights that are new or have changed raises the number, any other one leaves it.
        """
        ...

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run.

        Raises:
            WeightsError: what was composed of these weights overflows.
        """
        ...


class Executor(Protocol):
    """Turns an ONNX model into a callable."""

    name: str

    def refusals(self, model: onnx_ir.Model, captured: Captured, options: Options) -> Refusals:
        """The nodes that the executor does not take, so that others can run in it.

        Args:
            model: as for `lower`; not changed.
            captured: where it came from.
            options: the user's choices.

        Returns:
            None of them where `lower` takes the whole model, or raises for another reason than a node.
        """
        ...

    def lower(self, model: onnx_ir.Model, captured: Captured | None, options: Options) -> Lowered:
        """Build the callable.

        Args:
            model: the model to run; values typed where types are known.
            captured: where the model came from; None for a model that was read from a file. Its ATen graph
                fixes the order of the arguments and the outputs, and gives what is untouched back verbatim.
            options: the user's choices.

        Returns:
            A callable over positional arguments: the inputs of the ATen graph in its order (weights
            included, ints for symbolic sizes), or the graph inputs of `model` in order when `captured` is
            None. It returns the tuple of outputs.

        Raises:
            LoweringError: an operator or a form of one has no equivalent in this executor.
        """
        ...


def available(device_type: str) -> tuple[str, ...]:
    """The executors that can run here, in the order of the table.

    Args:
        device_type: where the tensors of the graph are, "cpu" or "cuda".
    """
    return tuple(row.name for row in _available(device_type))


def defaults(device_type: str) -> tuple[str, ...]:
    """What `executor="default"` tries, in order, where `plan.runtime_prediction` names no runtime.

    Args:
        device_type: as in `available`.
    """
    preferred = (row.name for row in _available(device_type) if device_type in row.preferred_on)
    return (*preferred, executor_table.BASELINE)


def version(name: str) -> str:
    """Version of the package that an executor needs; empty where that is PyTorch, or not installed.

    Args:
        name: of the executor.
    """
    row = executor_table.row_of(name)
    if row is None or row.package is None:
        return ""
    try:
        return importlib.metadata.version(row.package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def row(name: str) -> executor_table.ExecutorRow:
    """What is known of the executor of that name.

    Raises:
        OptionsError: there is no such executor.
    """
    found = executor_table.row_of(name)
    if found is None:
        raise OptionsError(
            "unknown executor", expected=f"one of {', '.join(executor_table.names())}", got=name
        )
    return found


def get(name: str) -> Executor:
    """The executor of that name.

    Raises:
        OptionsError: there is no such executor.
    """
    return cast("Executor", executor_table.module_of(row(name)).EXECUTOR)


def _available(device_type: str) -> list[executor_table.ExecutorRow]:
    """The rows of the executors that run on such a device and whose package is installed."""
    return [
        row
        for row in executor_table.ROWS
        if (not row.devices or device_type in row.devices)
        and (row.package is None or importlib.util.find_spec(row.package) is not None)
    ]
