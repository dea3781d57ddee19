"""`explain`: shows why a model is rewritten as it is, for each available executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchrlopt.api.explain.views import Explanation
from torchrlopt.errors import UnsupportedError
from torchrlopt.options import Options
from torchrlopt.report import Report


def explain(
    model: Callable[..., Any],
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    *,
    leave_out: bool = False,
    measure: bool = False,
    **options: Any,
) -> Explanation:
    """Plan a model for every executor, and describe each plan; nothing is kept.

    Args:
        model: a module in eval mode, or a function of tensors. It is run once, unchanged.
        example_inputs: positional arguments, or a mapping of keyword arguments, or one tensor.
        leave_out: also measure what each group of rewrites is worth for eager PyTorch: the model is planned,
            built and timed without it. Takes up to `measure_ms` per group; otherwise nothing is timed.
        measure: also optimise the model with these options, and measure what plan, kernels and runtime are
            worth and where the time of a call goes, see the option `measure_parts`.
        **options: see `Options`; `executor` has an effect only on a model that is optimised. So is one with
            `max_error`, since nothing else shows how a budget is used.

    Returns:
        For each executor: the rewrites of its plan with the predicted time that each saves, rewrites that
        gain nothing there, predicted times, and for eager PyTorch which kernels are packed and fused. With
        `measure` also the report of the optimised model.

    Raises:
        OptionsError: an option is unknown or ill-typed.
        UnsupportedError: the model is in training mode.
        RlOptError: the model cannot be captured.
    """
    from torchrlopt.api.explain.explainer import Explainer  # heavy
    from torchrlopt.capture.trace import visit  # heavy

    explainer = Explainer(Options.from_dict(options), leave_out)
    visit(model, example_inputs, explainer.look, explainer.leave)
    is_optimised = measure or options.get("max_error") is not None
    measured = (
        _measured(model, example_inputs, options | {"measure_parts": measure}) if is_optimised else None
    )
    return Explanation(tuple(explainer.graphs), explainer.reports, measured)


def _measured(
    model: Callable[..., Any],
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    options: Mapping[str, Any],
) -> Report:
    from torchrlopt.api.optimise import optimise, reports  # heavy

    if not isinstance(model, torch.nn.Module):
        raise UnsupportedError("a function is not measured by parts", expected="a module", got=repr(model))
    return Report.merged(reports(optimise(model, example_inputs, **options)))
