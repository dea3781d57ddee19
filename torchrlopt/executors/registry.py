"""Executors: what turns an ONNX model into a callable.

An executor is found by name, and its module is imported only then: asking for eager PyTorch never
loads another runtime.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from torchrlopt.errors import OptionsError

if TYPE_CHECKING:
    import onnx_ir

    from torchrlopt.capture import Captured
    from torchrlopt.options import Options

Lowered = Callable[..., tuple[Any, ...]]
"""A lowered graph: takes the inputs of `Captured.aten` in order, weights included; returns its outputs."""

_MODULES = {
    "eager": "torchrlopt.executors.eager.executor",
    "inductor": "torchrlopt.executors.inductor",
    "onnxruntime": "torchrlopt.executors.onnx.onnxruntime",
    "openvino": "torchrlopt.executors.onnx.openvino",
    "tensorrt": "torchrlopt.executors.tensorrt.executor",
}

NAMES: tuple[str, ...] = tuple(_MODULES)

# Packages that an executor needs beyond PyTorch.
_PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "tensorrt": "tensorrt"}


class Executor(Protocol):
    """Turns an ONNX model into a callable."""

    name: str

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
    """The executors that can run here, those that build quickly first.

    Args:
        device_type: where the tensors of the graph are, "cpu" or "cuda".
    """
    others = ("onnxruntime", "openvino") if device_type == "cpu" else ("tensorrt",)
    order = ("eager", *others, "inductor")
    return tuple(
        name
        for name in order
        if name not in _PACKAGES or importlib.util.find_spec(_PACKAGES[name]) is not None
    )


def defaults(device_type: str) -> tuple[str, ...]:
    """What `executor="default"` stands for: executors in the order in which they are tried.

    Args:
        device_type: as in `available`.
    """
    if device_type == "cuda" and "tensorrt" in available(device_type):
        return ("tensorrt", "eager")
    return ("eager",)


def version(name: str) -> str:
    """Version of the package that an executor needs; empty where that is PyTorch, or not installed.

    Args:
        name: of the executor.
    """
    try:
        return importlib.metadata.version(_PACKAGES[name]) if name in _PACKAGES else ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def get(name: str) -> Executor:
    """The executor of that name.

    Raises:
        OptionsError: there is no such executor.
    """
    if name not in _MODULES:
        raise OptionsError("unknown executor", expected=f"one of {', '.join(NAMES)}", got=name)
    return cast("Executor", importlib.import_module(_MODULES[name]).EXECUTOR)
