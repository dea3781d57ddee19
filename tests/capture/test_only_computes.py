"""Whether a call does nothing but run its graph: `capture.aot.only_computes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from torchrlopt.capture import aot

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Context:
    """As the context variable that models of transformers set during a call."""

    def __init__(self) -> None:
        self.value: Any = None
        self.calls = 0


CONTEXT = Context()


def resets(x: torch.Tensor) -> torch.Tensor:
    CONTEXT.value = 1
    y = torch.relu(x)
    CONTEXT.value = None
    return y


def sets_another(x: torch.Tensor) -> torch.Tensor:
    CONTEXT.value = 1
    return torch.relu(x)


def sets_another_type(x: torch.Tensor) -> torch.Tensor:
    CONTEXT.calls = False  # equals 0
    return torch.relu(x)


def adds(x: torch.Tensor) -> torch.Tensor:
    CONTEXT.added = None  # type: ignore[attr-defined]  # the object gets it here
    return torch.relu(x)


def sets_a_tensor(x: torch.Tensor) -> torch.Tensor:
    CONTEXT.value = x
    return torch.relu(x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (resets, True),
        (sets_another, False),
        (sets_another_type, False),
        (adds, False),
        (sets_a_tensor, False),
    ],
)
def test_an_object_that_is_left_as_it_was_is_no_effect(
    function: Callable[..., Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.CONTEXT", Context())
    found = []

    def backend(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        found.append(aot.only_computes(function.__code__))
        return gm.forward

    torch.compile(function, backend=backend)(torch.ones(2))
    assert found == [expected]
