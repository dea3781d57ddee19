"""`optimise`: returns a module that computes what the model computes in less time, with a report.

The heavy parts (ONNX, the C++ core, the executors) are imported when a model is optimised, so that importing
torchrlopt stays cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

import torch

from torchrlopt import searcher_table
from torchrlopt.api.optimised import Optimised, optimised
from torchrlopt.errors import OptionsError, UnsupportedError
from torchrlopt.loading import load
from torchrlopt.options import Options, OptionsDict, nearest
from torchrlopt.report import Report
from torchrlopt.storage.plan_file import SavedPlan
from torchrlopt.torch_private.modules import is_compiled_in_place

Model = TypeVar("Model", bound=torch.nn.Module)

_BACKEND = 'torch.compile(function, backend="rlopt")'

_OF_TORCH = ("torchrlopt.torch_private.dynamo",)
_OURS = ("torchrlopt.compile.backend",)


def optimise(
    model: Model,
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor | None = None,
    *,
    calibration: Iterable[Any] | None = None,
    **options: Unpack[OptionsDict],
) -> Model:
    """Rewrite a model for inference.

    Args:
        model: in eval mode. It still runs as before. An optimised one is optimised again, with these options.
        example_inputs: positional arguments, or a mapping of keyword arguments, or one tensor: the model is
            compiled for them at once, and they are kept for `save`. Without them it is compiled in the first
            call, for the inputs of that call. Inputs of other shapes work too; their first call may take a
            moment.
        calibration: with the option `max_error`: further inputs, each like `example_inputs`, on which the
            error must be within the budget, too.
        **options: see `Options`; or `mode`, as for `torch.compile`.

    Returns:
        A module with the same attributes (parameters, submodules, hooks and all others, see `Optimised`),
        methods and state_dict keys, and a `.report`. For type checkers it has the type of the model, in which
        `report` is not declared: `reports(module)` returns typed ones.

    Raises:
        OptionsError: an option is unknown or ill-typed, or there is calibration without a budget or inputs.
        UnsupportedError: the model is in training mode, compiled or scripted, or is not a module; its
            parameters have no shapes yet; or the inputs are none of the above.
        RlOptError: a stage failed and `on_error="raise"`.
    """
    checked = Options.from_dict(options)
    calls = None if calibration is None else _calls(calibration, example_inputs, checked)
    if isinstance(model, torch.nn.Module):
        _load(checked.search.searcher)
    original = _original(model)
    if checked.exclude:
        _check_excluded(original, checked.exclude)
    result = optimised(original, checked)
    if example_inputs is not None:
        args, kwargs = arguments(example_inputs)
        with torch.no_grad():
            result(*args, **kwargs)
        result._torchrlopt_runner.example_inputs = example_inputs
    if calls is not None:
        from torchrlopt.compile.calibration import calibrate  # heavy

        calibrate(result, calls)
    return cast(Model, result)


def _calls(
    calibration: Iterable[Any], example_inputs: Any, options: Options
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the arguments of all calls for calibration; raises OptionsError if there is no use for them."""
    if options.precision.max_error is None:
        raise OptionsError("calibration has no effect without a budget", todo="max_error=1e-2")
    if example_inputs is None:
        raise OptionsError("calibration needs example inputs, for which the model is compiled first")
    calls = [arguments(each) for each in calibration]
    if not calls:
        raise OptionsError("calibration has no inputs", expected="at least one")
    return calls


def apply_plan(
    model: Model,
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor | None,
    path: str | Path,
    **options: Unpack[OptionsDict],
) -> Model:
    """Rewrite a model with a plan saved by `report.plan.save(path)`, without a search.

    The core checks every step, and the result is checked and timed, as after a search.

    Args:
        model: in eval mode.
        example_inputs: as for `optimise`; sizes and types must be those that the plan was made for.
        path: of the plan.
        **options: see `Options`; `executor` defaults to the one that the plan was made for.

    Raises:
        SearchError: the plan cannot be read, is damaged, or is for another graph or library, and
            `on_error="raise"`; otherwise the original runs, and the report says why.
        RlOptError: as for `optimise`.
    """
    options["plan"] = str(path)
    return optimise(model, example_inputs, **options)


def load_plan(path: str | Path) -> SavedPlan:
    """Load a plan file written by `report.plan.save(path)`.

    Raises:
        SearchError: there is no such file, it is damaged, or has another format.
    """
    return SavedPlan.load(path)


def _load(searcher: str) -> None:
    """Import what compiling needs; torch's own compiler, which every backend loads, separately."""
    load("imports of torch", _OF_TORCH)
    load("imports", (*_OURS, searcher_table.module_name(searcher)))


def _original(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model to optimise; raises UnsupportedError if it is not one that can be optimised."""
    if not isinstance(model, torch.nn.Module):
        is_class = isinstance(model, type)
        raise UnsupportedError(
            "optimise takes a module",
            expected="torch.nn.Module",
            got=f"the class {model.__name__}" if is_class else type(model).__name__,
            todo="make a module of the class first" if is_class else f"for a function: {_BACKEND}",
        )
    if isinstance(model, Optimised):
        return model._torchrlopt_runner.original
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError(
            "the model is scripted or traced by TorchScript",
            got=type(model).__name__,
            todo="optimise the module that it was made of",
        )
    from torchrlopt.torch_private.dynamo import OptimizedModule  # heavy

    if isinstance(model, OptimizedModule) or is_compiled_in_place(model):
        raise UnsupportedError(
            "the model is compiled already",
            got=type(model).__name__,
            todo="optimise the module that was given to torch.compile; leave model.compile() out",
        )
    if any(map(torch.nn.parameter.is_lazy, chain(model.parameters(), model.buffers()))):
        raise UnsupportedError(
            "parameters of the model have no shapes yet", todo="call the model once, before it is optimised"
        )
    from torchrlopt.capture.trace import refuse_training  # heavy

    refuse_training(model)
    return model


def _check_excluded(model: torch.nn.Module, names: Iterable[str]) -> None:
    """Raises OptionsError for a name that is no module of the model, no operator and no substitution."""
    from torchrlopt.capture.excluded import is_operator  # heavy
    from torchrlopt.substitutions import load_library  # heavy

    library = load_library()
    known = [*(name for name, _ in model.named_modules() if name), *library.names]
    for name in names:
        if name not in known and not is_operator(name):
            raise OptionsError(
                "option exclude names nothing that there is",
                expected="a module of the model, an operator, or a substitution",
                got=name,
                todo=f"did you mean {nearest(name, known)!r}?",
            )


def arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of one call."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if not isinstance(example_inputs, Sequence) or isinstance(example_inputs, (str, bytes)):
        raise UnsupportedError(
            "example_inputs are not the arguments of a call",
            expected="a tensor, a tuple or list of arguments, or a mapping of keyword arguments",
            got=type(example_inputs).__name__,
        )
    return tuple(example_inputs), {}


def optimise_onnx(
    path_in: str | Path, path_out: str | Path, *, opset: int | None = None, **options: Unpack[OptionsDict]
) -> Report:
    """Rewrite an ONNX file; the result contains only standard operators and runs anywhere.

    Weights count as fixed: expressions over them are evaluated. Both files are timed, in the runtime that
    `executor` names if it is ONNX Runtime or OpenVINO, else in ONNX Runtime, if it is installed.

    Args:
        path_in: the model. Its external data must be in the same folder.
        path_out: destination of the rewritten model, or of the original if that is faster, or if a stage
            failed.
        opset: version of the ONNX operators to write, 13 or later; by default that of the file. If it is
            another one, all of the model is converted, and an error is raised where it cannot be: there is no
            original to write.
        **options: see `Options`; those about plans to measure and live weights have no effect on files.

    Returns:
        The report.

    Raises:
        OptionsError: an option is unknown or ill-typed.
        ModelFormatError: the file is malformed.
        UnsafePathError: its external data is elsewhere.
        RlOptError: a stage failed, and `on_error="raise"` or another opset is to be written.
    """
    from torchrlopt.compile.rewrite_file import rewrite_file  # heavy

    return rewrite_file(Path(path_in), Path(path_out), Options.from_dict(options), opset)


def reports(module: torch.nn.Module | None = None) -> list[Report]:
    """Return reports of compiled graphs, oldest first.

    Args:
        module: made by `optimise`. Without it, the graphs most recently compiled by
            `torch.compile(..., backend="rlopt")`.

    Raises:
        UnsupportedError: the module was not made by `optimise`.
    """
    if module is not None:
        if not isinstance(module, Optimised):
            raise UnsupportedError("only modules made by optimise have reports", got=type(module).__name__)
        return list(module._torchrlopt_runner.reports)
    from torchrlopt.compile.backend import reports as recent  # heavy

    return recent()


optimize, optimize_onnx = optimise, optimise_onnx
