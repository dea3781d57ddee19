"""Every reason for leaving a graph unchanged is in the table of docs/faq.md."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.docs.pages import ROOT
from torchrlopt.capture import aot, aten, trace

FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")


def texts_of(function: Callable[..., Any]) -> Iterator[str]:
    """What a function may return or assign as a reason: each text up to what differs from graph to graph."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        match node:
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) | ast.Constant(value=str(text)):
                if text.startswith(("the graph ", "tensors ", "inputs ", "a size ", "an input ")):
                    yield text.partition(" (")[0].strip()


REASONS = sorted(
    {
        *texts_of(aten.reason_to_leave_alone),
        *texts_of(aot.real_inputs),
        *(text.partition(":")[0] for text in (aten.NO_OPERATORS, trace.RECORDS_GRADIENTS)),
        trace.WRITES_TO_FROZEN.partition(":")[0],
    }
)


def test_reasons_are_found() -> None:
    assert {"the graph has complex tensors", "a size is known at run time only"} <= set(REASONS)
    assert len(REASONS) >= 12


@pytest.mark.parametrize("reason", REASONS)
def test_the_faq_has_the_reason(reason: str) -> None:
    assert f"\n| {reason} " in FAQ
