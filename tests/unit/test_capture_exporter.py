"""The private names of torch's exporter, and the way out where one is missing."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch

from tests.unit.capture_calls import assert_captured_right, capture_function
from torchrlopt.capture import exporter_private
from torchrlopt.onnx import opsets


@torch.library.custom_op("rlopt_test::thrice", mutates_args=())
def _thrice(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


@_thrice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


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


def test_registry_of_this_torch_is_complete() -> None:
    found = exporter_private.registry()
    assert found is not None
    assert found.opset.version == opsets.NATIVE


def test_registry_is_built_once() -> None:
    assert exporter_private.registry() is exporter_private.registry()


def test_opset_keeps_attention_gelu_and_rms_normalisation_whole() -> None:
    from onnx import defs

    for name in ("Attention", "Gelu", "RMSNormalization", "LayerNormalization"):
        assert defs.get_schema(name, opsets.NATIVE).since_version <= opsets.NATIVE


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


def test_inaccurate_translation_of_the_registry_is_not_used() -> None:
    record = capture_function(torch.log1p, torch.full((3,), 1e-9))
    assert record.captured.opaque == ("aten.log1p.default",)


@pytest.mark.usefixtures("without_registry")
def test_missing_registry_is_none() -> None:
    assert exporter_private.registry() is None


@pytest.mark.usefixtures("without_registry")
def test_tail_operator_by_the_public_exporter() -> None:
    record = capture_function(lambda x: x.exp().roll(1, 1) + 1, torch.randn(2, 5))
    assert record.captured.opaque == ()
    assert record.op_types()["Exp"] == 1
    assert record.captured.origins["roll"] == "roll"
    assert_captured_right(record)


@pytest.mark.usefixtures("without_registry")
def test_operator_that_the_public_exporter_refuses_is_opaque() -> None:
    record = capture_function(lambda x: torch.ops.rlopt_test.thrice(x), torch.randn(2, 5))
    assert record.captured.opaque == ("rlopt_test.thrice.default",)
