"""Private names of torch's exporter, and the fallback if one is missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import onnx_ir
import pytest
import torch

from tests.capture.capture_calls import assert_captured_right, capture_function
from torchrlopt.capture import exporter_private


@pytest.fixture
def without_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch whose exporter has moved its private modules."""
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> object:
        if name.endswith("exporter._registration"):
            raise ImportError(name)
        return real(name, package)

    exporter_private.registry.cache_clear()
    monkeypatch.setattr(importlib, "import_module", missing)
    yield
    monkeypatch.undo()
    exporter_private.registry.cache_clear()


def test_tail_operator_by_the_registry() -> None:
    record = capture_function(lambda x: x.roll(1, 1), torch.randn(2, 5))
    assert record.captured.opaque == ()
    assert set(record.captured.origins.values()) == {"roll"}
    assert_captured_right(record)


def test_function_of_the_registry_is_inlined() -> None:
    record = capture_function(lambda x: torch.special.xlogy(x, x + 1), torch.rand(2, 5) + 0.5)
    assert record.captured.opaque == ()
    assert {node.domain for node in record.captured.model.graph} == {""}
    assert_captured_right(record)


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (torch.log1p, "log1p.default"),
        # By a product with the identity matrix, which NaN beside the diagonal gets through.
        (lambda x: x.diagonal() + 1, "diagonal.default"),
        # By counting elements in the order of the operand's axes, not in memory.
        (lambda x: (x + 1).t().as_strided((2, 2), (1, 4)) * 2, "as_strided.default"),
        # By indices whose number hangs on data.
        (lambda x: torch.index_put(x, (x > 0,), x.new_tensor(2.0)), "index_put.default"),
    ],
    ids=["log1p", "diagonal", "as_strided", "index_put"],
)
def test_unfit_translation_of_the_registry_is_not_used(
    function: Callable[[torch.Tensor], torch.Tensor], operator: str
) -> None:
    record = capture_function(function, torch.randn(4, 4))
    assert record.captured.opaque == (f"aten.{operator}",)


def test_what_the_exporters_functions_log_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty list of axes, for one: onnx_ir says that its type is ambiguous."""
    seen: list[onnx_ir.AttributeType] = []

    def translate(*_: object) -> None:
        seen.append(onnx_ir.convenience.convert_attribute("axes", ()).type)

    found = exporter_private.registry()
    assert found is not None
    monkeypatch.setattr(found[0].dispatching, "dispatch", lambda node, table: (translate, ""))
    capture_function(lambda x: x.roll(1, 1), torch.randn(2, 5))
    assert seen == [onnx_ir.AttributeType.INTS]
    assert [record for record in caplog.records if record.name.startswith("onnx_ir")] == []


@pytest.mark.usefixtures("without_registry")
def test_tail_operator_without_the_registry_is_opaque() -> None:
    record = capture_function(lambda x: x.exp().roll(1, 1) + 1, torch.randn(2, 5))
    assert record.captured.opaque == ("aten.roll.default",)
