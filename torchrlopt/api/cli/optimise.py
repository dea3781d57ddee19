"""`torchrlopt optimise`: rewrites a model by name into a file, `.onnx`, `.rlopt` or `.pt2`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from torchrlopt import executor_table
from torchrlopt.api.cli.models import load_model, of_the_model
from torchrlopt.api.optimise import optimise, optimise_onnx
from torchrlopt.api.saved import save
from torchrlopt.errors import OptionsError
from torchrlopt.options import flat_options
from torchrlopt.report import Report


def to_file(model: str, out: Path, options: Mapping[str, Any]) -> Report:
    """Rewrite a model and write the result.

    Args:
        model: see `models.HELP`.
        out: ends in .onnx, .rlopt or .pt2.
        options: see `Options`.

    Raises:
        OptionsError: there is no such model, or the suffix is unknown.
        RlOptError: see `optimise_onnx` and `save`.
    """
    kinds: dict[str, Callable[[str, Path, Mapping[str, Any]], Report]] = {
        ".onnx": _to_onnx,
        ".rlopt": _saved,
        ".pt2": _saved,
    }
    if out.suffix not in kinds:
        raise OptionsError(
            "the ending of the result is unknown", expected=" or ".join(kinds), got=out.suffix or str(out)
        )
    if not out.absolute().parent.is_dir():
        raise OptionsError("there is no such folder for the result", where=str(out))
    return kinds[out.suffix](model, out, options)


def _to_onnx(model: str, out: Path, options: Mapping[str, Any]) -> Report:
    if model.endswith(".onnx"):
        if not Path(model).is_file():
            raise OptionsError("no such model", where=model, got="there is no such file")
        return optimise_onnx(model, out, **options)
    module, inputs = load_model(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        with of_the_model(module, inputs, model):
            torch.onnx.export(_module(module, model), inputs, path, dynamo=True, verbose=False)
        return optimise_onnx(path, out, **options)


def _saved(model: str, out: Path, options: Mapping[str, Any]) -> Report:
    """What is saved was not timed: a program of torch.export runs without the executor's own kernels."""
    module, inputs = load_model(model)
    given = flat_options(options)
    is_timed = given.get("measure_plans", 1) != 1
    chosen = {"executor": executor_table.BASELINE, "measure": is_timed, **given, "on_error": "raise"}
    with of_the_model(module, inputs, model):
        return save(optimise(_module(module, model), inputs, **chosen), out, inputs)


def _module(found: Any, name: str) -> torch.nn.Module:
    if not isinstance(found, torch.nn.Module):
        raise OptionsError(
            "the function does not return a module",
            where=name,
            expected="torch.nn.Module",
            got=type(found).__name__,
        )
    return found.eval()
