"""Checks a verdict that an earlier process stored by the first calls of this one.

A machine that was busy may have stored a wrong verdict, and a bundle may come from a machine that only looks
like this one. So the first calls alternate between the original and the rewritten graph until they have
confirmed the verdict, which takes a few calls, or contradicted it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrlopt.judge.faster import Verdict
from torchrlopt.judge.own_calls import Trial
from torchrlopt.judge.policy import Policy
from torchrlopt.torch_private.modes import is_traced


def checked_by_calls(
    original: Callable[..., Any],
    rewritten: Callable[..., Any],
    policy: Policy,
    end: Callable[[Verdict], bool],
) -> Callable[..., Any]:
    """Return a callable that runs the rewritten graph, and in some of the first calls the original.

    `end` is called once with the verdict on the calls; it returns whether the original runs from now on.
    """
    trial: Trial | None = None
    chosen: Callable[..., Any] | None = None

    def run(*args: Any) -> Any:
        nonlocal trial, chosen, original, rewritten
        if chosen is not None:
            return chosen(*args)
        if torch.is_grad_enabled() or is_traced():
            return rewritten(*args)
        kind = [each.shape for each in args if isinstance(each, torch.Tensor)]
        if trial is None:  # the first call is still the compilation's
            trial = Trial(kind, 0, policy)
            return rewritten(*args)
        if not trial.takes(kind):
            chosen = rewritten if trial.is_given_up else None
            return rewritten(*args)
        result, verdict = trial.call(lambda: original(*args), lambda: rewritten(*args), args)
        if verdict is not None:
            chosen = original = rewritten = original if end(verdict) else rewritten  # the other one is freed
        return result

    return run
