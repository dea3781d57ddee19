"""`save` and `load`: a rewritten model as a file, including its weights: our own, or one of torch.export."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch

from torchrlopt import executor_table
from torchrlopt.api.optimise import arguments
from torchrlopt.api.optimised import Optimised
from torchrlopt.api.runner import Runner
from torchrlopt.errors import ModelFormatError, OptionsError, UnsupportedError, VerificationError
from torchrlopt.options import Numerics
from torchrlopt.report import Journal, PrecisionRecord, Report, Status
from torchrlopt.storage.files import write_whole
from torchrlopt.torch_private.pytree import tree_leaves, tree_map
from torchrlopt.torch_private.tensors import marked_dims
from torchrlopt.warning_filter import ignored_warnings

if TYPE_CHECKING:
    from torchrlopt.judge.budget import Metric

Format: TypeAlias = Literal["rlopt", "pt2"]
Inputs: TypeAlias = Sequence[Any] | Mapping[str, Any] | torch.Tensor

_SAVEABLE = ("eager", "inductor")
_REPORT, _NUMERICS = "torchrlopt_report.json", "torchrlopt_numerics.txt"


def save(
    optimised: torch.nn.Module,
    path: str | Path,
    example_inputs: Inputs | None = None,
    dynamic_shapes: Any = None,
    *,
    format: Format | None = None,
    other_inputs: Sequence[Inputs] = (),
) -> Report:
    """Save the rewritten model with its current weights. Loading it needs none of the model's code.

    There are two formats. A `.rlopt` file runs as fast as the optimised module in eager PyTorch: it holds the
    packed weights, and which kernels run, for each set of sizes. It is for inference on the CPU, and holds no
    code. A `.pt2` file is an ExportedProgram of PyTorch's own operators, which `torch.export.load` loads
    as well; kernels of the executor are not in it, but chosen by `load`.

    Args:
        optimised: made by `optimise`; compiled for the example inputs if it is not yet.
        path: the file.
        example_inputs: as for `optimise`; defaults to those that were given to `optimise`.
        dynamic_shapes: for "pt2": of the inputs, as for `torch.export.export`. Without it, sizes marked by
            `torch._dynamo.mark_dynamic` vary, and the first size of each input if the model has been compiled
            for varying sizes; all others are those of the example.
        format: "rlopt" or "pt2"; by default, "rlopt" if the path has this suffix, else "pt2".
        other_inputs: for "rlopt": inputs of further calls, of other sizes or with other arguments, that the
            file is to run as well.

    Returns:
        The report; its plan is the one that runs, if PyTorch runs it and it fits the saved graph.

    Raises:
        UnsupportedError: there are no example inputs, the original runs, the user named an executor that does
            not run PyTorch operators, or the model writes to its own state; with "rlopt" also if a call is
            more than one graph, is not on the CPU, or takes or returns other objects than tensors, constants
            and containers of them.
        CaptureError: torch.export rejects the model.
        VerificationError: the result is wrong.
        OptionsError: there is no such format, or the path exists and is not a file.
        OSError: the file cannot be written.
    """
    if not isinstance(optimised, Optimised):
        raise UnsupportedError(
            "save takes what optimise returns",
            got=type(optimised).__name__,
            todo="torchrlopt.save(torchrlopt.optimise(model, inputs), path)",
        )
    chosen = _format(path, format)
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
    if chosen == "rlopt":
        if dynamic_shapes is not None:
            raise UnsupportedError(
                "sizes of an .rlopt file do not vary", todo="other_inputs=[...] adds calls of other sizes"
            )
        return _save_calls(runner, Path(path), done, [(args, kwargs), *map(arguments, other_inputs)])
    if other_inputs:
        raise UnsupportedError("a .pt2 file has one graph", todo="dynamic_shapes=..., or save an .rlopt file")
    return _save_export(runner, Path(path), done, args, kwargs, dynamic_shapes)


def _format(path: str | Path, given: str | None) -> Format:
    """Return the format of a file.

    Raises:
        OptionsError: there is no such format.
    """
    if given is None:
        return "rlopt" if Path(path).suffix == ".rlopt" else "pt2"
    for each in get_args(Format):
        if given == each:
            return each  # type: ignore[no-any-return]
    raise OptionsError("unknown format of a saved model", expected="'rlopt' or 'pt2'", got=given)


def _save_calls(
    runner: Runner,
    path: Path,
    done: Report,
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
) -> Report:
    """Write an .rlopt file."""
    # heavy
    from torchrlopt.artefact.file import Tensors, write
    from torchrlopt.artefact.module import stamp
    from torchrlopt.compile.stored_call import stored_call

    is_eager = done.executor == executor_table.BASELINE
    plan = runner.options.plan if is_eager else None
    options = dataclasses.replace(runner.options, executor=executor_table.BASELINE, plan=plan)
    reports, graphs, tensors = [], [], Tensors()
    for args, kwargs in calls:
        journal = Journal(searcher=options.search.searcher, executor=options.executor)
        if not is_eager:
            journal.add_note(f"the optimised model runs in {done.executor}, the saved one in eager PyTorch")
        plans, precision = (done.plans, _precision(done)) if is_eager else ((), ())
        graphs.append(stored_call(runner.original, args, kwargs, options, plans, journal, tensors, precision))
        status = Status("rewritten", weight_sets=1, checked_sets=int(options.verify))
        reports.append(journal.report(status))
    report = Report.merged(reports)
    content = {"stamp": stamp(), "graphs": graphs, "report": json.loads(report.to_json())}
    write(path.absolute(), content, tensors)
    return report


def _save_export(
    runner: Runner,
    path: Path,
    done: Report,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
) -> Report:
    """Write a .pt2 file."""
    # heavy
    from torchrlopt.capture.exported import export
    from torchrlopt.compile.export_program import rewritten_program

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
        exported,
        done.plans if is_pytorch or runner.options.plan is not None else (),
        options,
        journal,
        _precision(done),
    )
    report = journal.report(Status("rewritten", weight_sets=1, checked_sets=int(options.verify)))
    write_whole(path.absolute(), _packed(program, report, options.numerics))
    return report


def _precision(done: Report) -> tuple[PrecisionRecord, ...]:
    """Return what is lowered in the saved model, too: nothing, once an error was beyond the budget."""
    return () if done.status.exact_since is not None else done.precision


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


def load(path: str | Path, *, format: Format | None = None, kernels: bool = True) -> torch.nn.Module:
    """Load a module written by `save`. Needs no search and none of the model's code.

    An `.rlopt` file is mapped into memory, which processes share, and may come from anybody: it holds tensors
    and names of operators, and nothing in it is run as code. If it was saved on a processor with other
    instructions or by another version, its weights are packed again, which takes seconds.

    A `.pt2` file is loaded by `torch.export.load`, and is no safer than that, which uses pickle: do not load
    untrusted files. `save` puts only tensors into a pickle. On the CPU its calls run in the executor `eager`,
    with weights packed for this processor, and the first call of each kind of inputs is compared with the
    plain program. Calls that PyTorch traces, compiles or differentiates, and those under autocast, run the
    plain program.

    Args:
        path: the file.
        format: "rlopt" or "pt2"; by default, "rlopt" if the path has this suffix, else "pt2".
        kernels: whether a `.pt2` file uses kernels; if not, it runs PyTorch's operators one by one.

    Raises:
        ModelFormatError: there is no such file, or it is not what `save` wrote in this format.
        OptionsError: there is no such format.
    """
    if _format(path, format) == "rlopt":
        from torchrlopt.artefact import module  # heavy

        return module.load(Path(path), _metric_of)
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
    loaded = program.module()
    numerics: Any = _text(extra[_NUMERICS])
    if kernels and numerics in get_args(Numerics):
        from torchrlopt.api.loaded import use_kernels  # heavy

        use_kernels(program, loaded, numerics)
    return loaded


def _metric_of(name: str) -> Metric:
    from torchrlopt.judge.budget import METRICS  # heavy, and seldom needed

    return METRICS[name]


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
