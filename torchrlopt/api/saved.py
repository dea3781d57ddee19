"""`save` and `load`: a rewritten model as a `.pt2` file of torch.export, including its weights."""

from __future__ import annotations

import dataclasses
import inspect
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from torchrlopt import executor_table
from torchrlopt.api.optimised import Optimised
from torchrlopt.errors import ModelFormatError, UnsupportedError, VerificationError
from torchrlopt.options import Numerics
from torchrlopt.report import Journal, Report, Status
from torchrlopt.storage.files import write_whole
from torchrlopt.torch_private.pytree import tree_leaves, tree_map
from torchrlopt.torch_private.tensors import marked_dims
from torchrlopt.warning_filter import ignored_warnings

_SAVEABLE = ("eager", "inductor")
_REPORT, _NUMERICS = "torchrlopt_report.json", "torchrlopt_numerics.txt"


def save(
    optimised: Optimised,
    path: str | Path,
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor | None = None,
    dynamic_shapes: Any = None,
) -> Report:
    """Save the rewritten model: PyTorch's own operators, and the current weights.

    The file is an ExportedProgram. Loading it, by `load` or by `torch.export.load`, needs neither the model's
    code nor this package; kernels of the executor are not in it, but chosen by `load`.

    Args:
        optimised: made by `optimise`; compiled for the example inputs if it is not yet.
        path: the file, by convention with the suffix .pt2.
        example_inputs: as for `optimise`; defaults to those that were given to `optimise`.
        dynamic_shapes: of the inputs, as for `torch.export.export`. Without it, sizes marked by
            `torch._dynamo.mark_dynamic` vary, and the first size of each input if the model has been compiled
            for varying sizes; all others are those of the example.

    Returns:
        The report; its plan is the one that runs, if PyTorch runs it and it fits the exported graph.

    Raises:
        UnsupportedError: there are no example inputs, the original runs, the user named an executor that does
            not run PyTorch operators, or the model writes to its own state.
        CaptureError: torch.export rejects the model.
        VerificationError: the result is wrong.
        OptionsError: the path exists and is not a file.
        OSError: the file cannot be written.
    """
    # heavy
    from torchrlopt.api.optimise import arguments
    from torchrlopt.capture.exported import export
    from torchrlopt.compile.export_program import rewritten_program

    if not isinstance(optimised, Optimised):
        raise UnsupportedError(
            "save takes what optimise returns",
            got=type(optimised).__name__,
            todo="torchrlopt.save(torchrlopt.optimise(model, inputs), path)",
        )
    runner = optimised._torchrlopt_runner
    example_inputs = runner.example_inputs if example_inputs is None else example_inputs
    if example_inputs is None:
        raise UnsupportedError(
            "save needs example inputs: those of the first call are not kept",
            todo="torchrlopt.save(optimised, path, inputs)",
        )
    args, kwargs = arguments(example_inputs)
    if not runner.reports:
        with torch.no_grad():
            optimised(*args, **kwargs)
    done = _saveable(runner.report, runner.options.executor)
    if dynamic_shapes is None:
        dynamic_shapes = _shapes(runner.original, args, kwargs, runner.has_varying_sizes)
    # `save` writes PyTorch operators: if we chose a runtime, the plan for it is not used,
    # unless the user gave it.
    is_pytorch = done.executor in _SAVEABLE
    name = done.executor if is_pytorch else executor_table.BASELINE
    options = dataclasses.replace(runner.options, executor=name, plan=None)
    journal = Journal(searcher=options.search.searcher, executor=options.executor)
    exported = export(runner.original, args, kwargs, dynamic_shapes or None)
    if dynamic_shapes and not exported.traced.sizes:
        raise UnsupportedError(
            "no size of the exported model varies",
            todo="give inputs of at least 2 in each size that is to vary; with dynamic_shapes={} none does",
        )
    program = rewritten_program(
        exported, done.plans if is_pytorch or runner.options.plan is not None else (), options, journal
    )
    report = journal.report(Status("rewritten", weight_sets=1, checked_sets=int(options.verify)))
    write_whole(Path(path).absolute(), _packed(program, report, options.numerics))
    return report


def _packed(program: torch.export.ExportedProgram, report: Report, numerics: Numerics) -> bytes:
    """Return the contents of the file, after checking that the weights are read back unchanged.

    Raises:
        VerificationError: they do not.
    """
    file = io.BytesIO()
    # torch warns about every weight that is transposed; the check below covers those too.
    with ignored_warnings("No complete tensor found"):
        torch.export.save(program, file, extra_files={_REPORT: report.to_json(), _NUMERICS: numerics})
    file.seek(0)
    again = torch.export.load(file).state_dict
    for name, tensor in program.state_dict.items():
        if not torch.allclose(again[name], tensor, rtol=0.0, atol=0.0, equal_nan=True):
            raise VerificationError("torch.export.save does not keep a weight as it is", where=name)
    return file.getvalue()


def load(path: str | Path, *, kernels: bool = True) -> torch.nn.Module:
    """Load a module written by `save`. Needs no search and none of the model's code.

    The module is that of torch.export. On the CPU its calls run in the executor `eager`, with weights packed
    for this processor, and the first call of each kind of inputs is compared with the plain program. Calls
    that PyTorch traces, compiles or differentiates run the plain program.

    It uses `torch.export.load`, and is no safer than that, which uses pickle: do not load untrusted files.
    `save` puts only tensors into a pickle.

    Args:
        path: the file.
        kernels: whether to use kernels; if not, the module runs PyTorch's operators one by one.

    Raises:
        ModelFormatError: there is no such file, or it is not one of torch.export's.
    """
    if not Path(path).is_file():  # torch would log a traceback first
        expected = "what torchrlopt.save wrote"
        raise ModelFormatError("the file cannot be loaded: there is none", where=str(path), expected=expected)
    extra = {_NUMERICS: ""}
    try:
        program = torch.export.load(Path(path), extra_files=extra)
    except Exception as error:  # of many types
        raise ModelFormatError(
            "the file cannot be loaded",
            where=str(path),
            expected="what torchrlopt.save wrote",
            got=f"{type(error).__name__}: {error}",
        ) from error
    module = program.module()
    numerics: Any = _text(extra[_NUMERICS])
    if kernels and numerics in get_args(Numerics):
        from torchrlopt.api.loaded import use_kernels  # heavy

        use_kernels(program, module, numerics)
    return module


def _text(given: str | bytes) -> str:
    return given.decode(errors="replace") if isinstance(given, bytes) else given


def _saveable(report: Report, named: str) -> Report:
    """Return the report if what runs can be saved, or if its executor was not the one that the user named.

    Raises:
        UnsupportedError: it cannot.
    """
    if report.kept == "original":
        raise UnsupportedError(
            "there is no rewritten model to save: the original runs",
            got=report.fallback_reason,
            todo="torch.export.save(torch.export.export(model, inputs), path) saves it; with "
            "optimise(..., measure=False) a rewritten one is kept although it is not faster",
        )
    if report.executor not in _SAVEABLE and named == report.executor:
        raise UnsupportedError(
            "what this executor runs is no program of PyTorch",
            expected=" or ".join(_SAVEABLE),
            got=report.executor,
            todo="optimise with executor='eager' and save that, or export the model to ONNX and use "
            "torchrlopt.optimise_onnx: its file runs in ONNX Runtime, OpenVINO and TensorRT",
        )
    return report


def _shapes(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], has_varying_sizes: bool
) -> dict[str, Any]:
    """Return which sizes of the inputs vary, for torch.export; empty if none does."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    found: dict[str, Any] = tree_map(lambda leaf: _dims(leaf, has_varying_sizes), dict(bound))
    return found if torch.export.Dim.AUTO in tree_leaves(found) else {}


def _dims(leaf: Any, has_varying_sizes: bool) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return None
    marked = marked_dims(leaf)
    if not marked and has_varying_sizes and leaf.dim():
        marked = {0}
    return tuple(
        torch.export.Dim.AUTO if dim in marked else torch.export.Dim.STATIC for dim in range(leaf.dim())
    )
