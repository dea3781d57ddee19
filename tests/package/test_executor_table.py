"""The table of executors: a row is everything that the package needs to know of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchrlopt
from torchrlopt import executor_table
from torchrlopt.errors import OptionsError, UnsupportedError
from torchrlopt.executor_table import ROWS, ExecutorRow
from torchrlopt.executors import registry
from torchrlopt.machine.cost import device_model
from torchrlopt.options import Options

# An executor in a module of its own: eager PyTorch that counts what it was given.
MODULE = """
from torchrlopt.executors.eager.executor import EagerExecutor


class Counting(EagerExecutor):
    name = "counting"
    num_lowered = 0

    def lower(self, model, captured, options):
        self.num_lowered += 1
        return super().lower(model, captured, options)


EXECUTOR = Counting()
"""


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExecutorRow:
    """A further executor: one module, one row."""
    (tmp_path / "counting_executor.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    row = ExecutorRow("counting", "counting_executor", "counts", devices=("cpu",), prices={"launch_us": 0.25})
    monkeypatch.setattr(executor_table, "ROWS", (*ROWS, row))
    return row


@pytest.mark.usefixtures("counting")
def test_a_row_is_all_that_an_executor_needs() -> None:
    assert Options(executor="counting").executor == "counting"
    assert registry.available("cpu")[-1] == "counting"
    assert "counting" not in registry.available("cuda")
    assert device_model("counting").launch_us == 0.25 != device_model("eager").launch_us
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.randn(4, 8)
    torch._dynamo.reset()
    ours = torchrlopt.optimise(model, x, executor="counting", cache=False, on_error="raise", min_gain=-10)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x))
    assert ours.report.executor == "counting"
    assert registry.get("counting").num_lowered > 0  # type: ignore[attr-defined]


def test_the_executor_is_unknown_without_its_row() -> None:
    with pytest.raises(OptionsError, match="did you mean 'onnxruntime'"):
        Options(executor="onnxruntim")
    with pytest.raises(OptionsError, match="unknown executor"):
        registry.get("counting")
    with pytest.raises(UnsupportedError, match="no prices for this executor"):
        device_model("counting")


def test_versions_are_those_of_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    tested_by = ExecutorRow("tested", "tested_executor", "needs a package", package="pytest")
    absent = ExecutorRow("absent", "absent_executor", "is not there", package="no_such_package_at_all")
    monkeypatch.setattr(executor_table, "ROWS", (*ROWS, tested_by, absent))
    assert registry.version("tested") == pytest.__version__
    assert "absent" not in registry.available("cpu")
    assert registry.version("absent") == registry.version("eager") == registry.version("unknown") == ""


def test_preferred_executors_come_before_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ExecutorRow("first", "first_executor", "is tried first", preferred_on=("cpu",))
    monkeypatch.setattr(executor_table, "ROWS", (*ROWS, first))
    assert registry.preferred("cpu") == ("first",)
