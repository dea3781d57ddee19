"""Looks up executors by name or by what can run on this machine.

`torchrlopt.executor_table` lists them. An executor's module is imported only when it is looked up by name:
using eager PyTorch never loads another runtime.
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
    from torchrlopt.options import LoweringOptions


Refusals: TypeAlias = "Mapping[onnx_ir.Node, str]"
"""The nodes that an executor does not support, with reasons."""


class Lowered(Protocol):
    """A lowered graph: maps the inputs of `Captured.aten` in order, including weights, to its outputs."""

    @property
    def num_evaluations(self) -> int:
        """How often expressions over weights have been evaluated.

        Calls with new or changed weights increase the number; other calls do not.
        """
        ...

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run.

        Raises:
            WeightsError: a value computed from these weights overflows.
        """
        ...


class Executor(Protocol):
    """Turns an ONNX model into a callable."""

    name: str

    def refusals(self, model: onnx_ir.Model, captured: Captured, options: LoweringOptions) -> Refusals:
        """The nodes that the executor does not support, so that the others can run in it.

        Args:
            model: as for `lower`; not modified.
            captured: where it came from.
            options: the user's options.

        Returns:
            Empty if `lower` supports the whole model, or raises for a reason other than a node.
        """
        ...

    def lower(self, model: onnx_ir.Model, captured: Captured | None, options: LoweringOptions) -> Lowered:
        """Build the callable.

        Args:
            model: the model to run; values are typed if their types are known.
            captured: where the model came from; None for a model read from a file. Its ATen graph defines the
                order of arguments and outputs, and provides the original calls of unchanged parts.
            options: the user's options.

        Returns:
            A callable over positional arguments: the inputs of the ATen graph in its order (including
                weights, and ints for symbolic sizes), or the graph inputs of `model` in order if `captured`
                is None. It returns the tuple of outputs.

        Raises:
            LoweringError: an operator, or a form of one, has no equivalent in this executor.
        """
        ...


def available(device_type: str) -> tuple[str, ...]:
    """The executors that can run on this machine, in the order of the table.

    Args:
        device_type: where the tensors of the graph are, "cpu" or "cuda".
    """
    return tuple(row.name for row in _available(device_type))


def preferred(device_type: str) -> tuple[str, ...]:
    """The executors that `executor="default"` tries before eager PyTorch for any graph; see `available`."""
    return tuple(row.name for row in _available(device_type) if device_type in row.preferred_on)


def version(name: str) -> str:
    """Version of the package that an executor needs; empty if that is PyTorch or is not installed.

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
    """The table row of the executor with this name.

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
    """The executor with this name.

    Raises:
        OptionsError: there is no such executor.
    """
    return cast("Executor", executor_table.module_of(row(name)).EXECUTOR)


def _available(device_type: str) -> list[executor_table.ExecutorRow]:
    """The rows of executors that run on this device type and whose package is installed."""
    return [
        row
        for row in executor_table.ROWS
        if (not row.devices or device_type in row.devices)
        and (row.package is None or importlib.util.find_spec(row.package) is not None)
    ]
