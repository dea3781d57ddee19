"""`optimise`: a module that computes what the model computes, in less time, with a report.

The heavy parts (ONNX, the C++ core, the executors) are imported when a model is optimised, so that importing
torchrlopt stays cheap.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from torchrlopt.errors import UnsupportedError
from torchrlopt.options import Options
from torchrlopt.report import Report


def optimise(
    model: torch.nn.Module, example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor, **options: Any
) -> Optimised:
    """Rewrite a model for inference.

    Args:
        model: in eval mode. It is not changed, and its parameters and buffers are shared with the result.
        example_inputs: positional arguments, or a mapping of keyword arguments, or one tensor. Inputs of
            other shapes work too; they may take a moment at the first call.
        **options: see `Options`.

    Returns:
        A module with the same parameters, buffers, submodules and state_dict keys, and a `.report`.

    Raises:
        OptionsError: an option is unknown or ill-typed.
        UnsupportedError: the model is in training mode.
        RlOptError: a stage failed and `on_error="raise"`.
    """
    checked = Options.from_dict(options)
    if not isinstance(model, torch.nn.Module):
        raise UnsupportedError(
            "optimise takes a module",
            expected="torch.nn.Module",
            got=type(model).__name__,
            todo='for a function: torch.compile(function, backend="rlopt")',
        )
    from torchrlopt.capture.trace import call, refuse_training  # heavy

    refuse_training(model)
    optimised = Optimised(model, checked)
    with torch.no_grad(), _for_weights(checked):
        call(optimised, example_inputs)
    return optimised


def optimise_onnx(path_in: str | Path, path_out: str | Path, **options: Any) -> Report:
    """Rewrite an ONNX file; the result holds standard operators only and runs anywhere.

    Weights count as fixed: expressions over them stay in the file, and runtimes fold them on loading.

    Args:
        path_in: the model. Its external data must lie beside it.
        path_out: where the rewritten model goes (the original one where a stage failed).
        **options: see `Options`; those about timing and about live weights have no effect on files.

    Returns:
        What was done.

    Raises:
        OptionsError: an option is unknown or ill-typed.
        ModelFormatError: the file is malformed.
        UnsafePathError: its external data lies elsewhere.
        RlOptError: a stage failed and `on_error="raise"`.
    """
    from torchrlopt.compile.rewrite_file import rewrite_file  # heavy

    return rewrite_file(Path(path_in), Path(path_out), Options.from_dict(options))


class Optimised(torch.nn.Module):
    """A model behind the rlopt backend; made by `optimise`.

    It shares the parameters, buffers and submodules of the original: a change to one is a change to both.
    Calls run without recording gradients; in training mode, or when an input requires a gradient, the
    original runs as it is.

    Args:
        original: the model.
        options: the user's choices.

    Attributes:
        reports: one report per compiled graph, oldest first.
    """

    reports: list[Report]

    def __init__(self, original: torch.nn.Module, options: Options) -> None:
        super().__init__()
        # into __dict__ directly: nn.Module would register the original as a submodule
        self.__dict__["_original"] = original
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[name] = original.__dict__[name]
        self.training = original.training
        self.options = options
        self.reports = []
        self.__dict__["_run"] = _compiled(original, options, self.reports.append)

    @property
    def report(self) -> Report:
        """What happened, over all graphs compiled so far."""
        return Report.merged(self.reports)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the original computes."""
        if self.training or (torch.is_grad_enabled() and _any_requires_grad((*args, *kwargs.values()))):
            return self._original(*args, **kwargs)
        with torch.no_grad():
            return self._run(*args, **kwargs)

    def train(self, mode: bool = True) -> Optimised:
        """Switch the shared model between training and inference."""
        self._original.train(mode)
        self.training = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The original's state_dict, with its keys."""
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load into the shared parameters and buffers."""
        return self._original.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if "_original" not in self.__dict__:  # while unpickling
            raise AttributeError(name)
        return getattr(self._original, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles carry the model and the options; they compile anew."""
        return (Optimised, (self._original, self.options))

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimised:
        copied = Optimised(copy.deepcopy(self._original, memo), self.options)
        memo[id(self)] = copied
        return copied


def _any_requires_grad(values: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def _compiled(
    original: torch.nn.Module, options: Options, record: Callable[[Report], None]
) -> Callable[..., Any]:
    """The original through torch.compile with our backend."""

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        from torchrlopt.compile.backend import compile_graph  # heavy

        return compile_graph(gm, example_inputs, options, record)

    def reset() -> None:
        from torchrlopt.compile.backend import reset as forget  # heavy

        forget()

    backend.reset = reset  # type: ignore[attr-defined]  # torch._dynamo.reset() calls it

    from torchrlopt.capture.trace import isolated  # heavy

    own = isolated(original)
    if options.weights == "frozen":
        from torchrlopt.capture.aot import skip_module_guards  # heavy

        return torch.compile(own, backend=backend, options={"guard_filter_fn": skip_module_guards})
    return torch.compile(own, backend=backend)


def _for_weights(options: Options) -> AbstractContextManager[Any]:
    """Around the first call."""
    if options.weights != "frozen":
        return nullcontext()
    from torchrlopt.capture.aot import weights_as_attributes  # heavy

    return weights_as_attributes()


def reports() -> list[Report]:
    """Reports of the graphs most recently compiled by `torch.compile(..., backend="rlopt")`, oldest first."""
    from torchrlopt.compile.backend import reports as recent  # heavy

    return recent()
