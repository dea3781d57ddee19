"""The contestants of a benchmark: eager PyTorch, inductor, runtimes on PyTorch's own export, torchrlopt."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrlopt.api.cli.models import load_model
from torchrlopt.executors.registry import available
from torchrlopt.torch_private.pytree import tree_leaves

BASE = "eager"
#: Names of contestants that are torchrlopt, with their options.
OURS: dict[str, dict[str, Any]] = {
    "torchrlopt": {},
    "torchrlopt/frozen": {"weights": "frozen"},
    "torchrlopt/auto": {"executor": "auto"},
}
_RUNTIMES = ("onnxruntime", "openvino")

Run = Callable[[], Any]
"""One call of the model, on its inputs."""


def names() -> tuple[str, ...]:
    """Return all contestants in report order; the first is the base of every ratio."""
    return (BASE, "inductor", *_RUNTIMES, *OURS)


def installed() -> tuple[str, ...]:
    """Return the contestants that can run here."""
    missing = {name for name in _RUNTIMES if importlib.util.find_spec(name) is None}
    return tuple(name for name in names() if name not in missing)


@dataclasses.dataclass
class Model:
    """A model with the inputs of its call.

    Attributes:
        module: in eval mode.
        inputs: of one call.
        path: the ONNX file that it comes from; None if it comes from Python.
    """

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    path: Path | None = None


def load(text: str) -> Model:
    """Load a model by name, see `cli.models.load_model`; with the same numbers in every process.

    Raises:
        RlOptError: there is no such model.
    """
    torch.manual_seed(0)
    found, inputs = load_model(text)
    module = found if isinstance(found, torch.nn.Module) else _Function(found)
    return Model(module.eval(), inputs, Path(text) if text.endswith(".onnx") else None)


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


def make(
    name: str, model: Model, folder: Path, options: Mapping[str, Any] | None = None
) -> tuple[Run, Callable[[], str]]:
    """Prepare a contestant for its first call, which compiles.

    Args:
        name: one of `names`.
        model: to run.
        folder: for its files.
        options: of torchrlopt, in addition to the contestant's.

    Returns:
        A function that makes one call, and one that names the graph that runs after the first call, or "" if
        there was no choice.
    """
    if name in OURS:
        # imported as users do
        from torchrlopt.api.optimise import optimise

        fast = optimise(model.module, **OURS[name], **(options or {}))
        return _on_device(fast, model.inputs), lambda: _kept(fast.report)
    if name in _RUNTIMES:
        path = model.path or _exported(model, folder)
        feeds = [leaf for leaf in tree_leaves(model.inputs) if isinstance(leaf, torch.Tensor)]
        return _session(name, path, feeds), lambda: ""
    run = torch.compile(model.module) if name == "inductor" else model.module
    return _on_device(run, model.inputs), lambda: ""


def _kept(report: Any) -> str:
    return report.executor if report.kept == "rewritten" else "original"


def _on_device(run: Callable[..., Any], inputs: Sequence[Any]) -> Run:
    """Return a function that makes one call and waits for its result."""
    is_on_cuda = any(leaf.is_cuda for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor))

    def call() -> Any:
        with torch.no_grad():
            found = run(*inputs)
        if is_on_cuda:
            torch.cuda.synchronize()
        return found

    return call


def _exported(model: Model, folder: Path) -> Path:
    path = folder / "model.onnx"
    torch.onnx.export(model.module, model.inputs, path, dynamo=True, verbose=False)
    return path


def _session(name: str, path: Path, feeds: Sequence[torch.Tensor]) -> Run:
    """Return a function that calls a runtime on an ONNX file, as the runtime's documentation shows."""
    assert name in available("cpu")
    module = importlib.import_module(f"torchrlopt.executors.onnx_runtimes.{name}")
    session = module.open_file(path, torch.get_num_threads())
    arrays = [feed.detach().numpy() for feed in feeds]
    return lambda: session(arrays)
