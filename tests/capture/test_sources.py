"""Source locations of captured operators in the user's code."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import torchrlopt
from torchrlopt.capture.job import jobs_of

HERE = "tests/capture/test_sources.py"


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(), Inner()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.special.bessel_j0(x)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return 1 + next(at for at, line in enumerate(lines) if line.strip() == text)


def test_lines_and_modules() -> None:
    (job,) = jobs_of(Outer().eval(), torch.randn(2, 4))
    found = {(source.module, source.text, source.line, source.file) for source in job.sources.values()}
    text = "return torch.relu(self.linear(x))"
    assert ("layers.0", text, line_of(text), HERE) in found
    assert ("layers.1.linear", text, line_of(text), HERE) in found
    last = "return torch.special.bessel_j0(x)"
    assert ("", last, line_of(last), HERE) in found
    assert all("torch/nn" not in source.file for source in job.sources.values())
    assert set(job.sources) <= {node.name for node in job.captured.model.graph}


def test_inputs_and_weights_are_called_as_the_user_calls_them() -> None:
    (job,) = jobs_of(Outer().eval(), {"x": torch.randn(2, 4)})
    names = {f"layers.{at}.linear.{kind}" for at in (0, 1) for kind in ("weight", "bias")}
    assert set(job.labels.values()) == {*names, "kwargs['x']"}
    given = {value.name for value in job.captured.model.graph.inputs}
    assert set(job.labels) == given


def test_weights_that_are_frozen_keep_their_names() -> None:
    report = torchrlopt.optimise(
        Outer().eval(),
        torch.randn(2, 4),
        cache=False,
        on_error="raise",
        measure=False,
        searcher="greedy",
        weights="frozen",
    ).report
    labels = set(report.records[0].draw().labels.values())
    assert len([name for name in labels if "linear" in name and "weight" in name]) == 2, labels


def test_the_report_tells_the_lines_of_the_module(tmp_path: Path) -> None:
    """Through `optimise`, whose wrapper is no part of the module's path."""
    model = Outer().eval()
    report = torchrlopt.optimise(
        model, torch.randn(2, 4), cache=False, on_error="raise", measure=False, searcher="greedy"
    ).report
    drawing = report.records[0].draw()
    assert {source.module for source in drawing.sources.values()} >= {"layers.0", "layers.1.linear", ""}
    report.save(tmp_path / "page.html", "Outer")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"{HERE}:{line_of('return torch.special.bessel_j0(x)')}" in page
    assert "Left as they are" in page
