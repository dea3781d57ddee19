"""`torchrlopt.save` and `torchrlopt.load`."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.e2e.models import (
    RUNTIMES,
    STRICT,
    Branches,
    ConvBranches,
    ConvNorm,
    assert_right,
    assert_same,
    build,
    widened,
)
from torchrlopt import _C
from torchrlopt.compile import contestant
from torchrlopt.errors import CaptureError, ModelFormatError, UnsupportedError, VerificationError
from torchrlopt.plan import planning

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

GREEDY = {**STRICT, "searcher": "greedy"}
X = torch.linspace(-1, 1, 80).reshape(5, 16)


class Rich(nn.Module):
    """Takes and returns containers, keywords, numbers, None and one input as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(
        self, pair: tuple[torch.Tensor, torch.Tensor], *, mask: torch.Tensor, scale: float = 2.0
    ) -> dict[str, Any]:
        x, unused = pair
        y = torch.cat([self.a(x), self.b(x)], 1) * scale
        return {"y": y.masked_fill(mask, 0.0), "none": None, "number": 3, "twice": [y, y], "same": unused}


def test_a_saved_model_needs_no_search_and_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build(ConvBranches), torch.randn(2, 3, 8, 8)
    fast = torchrlopt.optimise(model, x, **GREEDY)
    monkeypatch.setattr(planning, "search_plan", None)
    report = torchrlopt.save(fast, tmp_path / "fast.pt2", x)
    assert torch.export.load(tmp_path / "fast.pt2").example_inputs is None, "they are the user's own"
    assert report.step_counts() == fast.report.step_counts() != {}
    assert report.numerical_error is not None
    torch.save({"x": x, "y": model(x).detach()}, tmp_path / "data.pt")
    code = (
        "import sys, torch; data = torch.load(sys.argv[2])\n"
        "def check(run):\n"
        "    torch.testing.assert_close(run(data['x']), data['y'], rtol=1e-5, atol=1e-5)\n"
        "    operators = [str(n.target) for n in run.graph.nodes if n.op == 'call_function']\n"
        "    assert not any('batch_norm' in each for each in operators), operators\n"
        "check(torch.export.load(sys.argv[1]).module())\n"
        "assert 'torchrlopt' not in sys.modules\n"
        "import torchrlopt; check(torchrlopt.load(sys.argv[1])); print('right')"
    )
    files = [str(tmp_path / "fast.pt2"), str(tmp_path / "data.pt")]
    assert subprocess.check_output([sys.executable, "-c", code, *files], text=True) == "right\n"


@pytest.mark.nightly
def test_other_exports_of_the_process_are_as_before(tmp_path: Path) -> None:
    """Torch caches which operators it may take apart; it did so while some were kept whole for us."""
    code = (
        "import sys, torch, torchrlopt; from tests.e2e.models import Branches, STRICT, build; "
        "model, x = build(Branches), torch.ones(5, 16); "
        "torchrlopt.save(torchrlopt.optimise(model, x, searcher='greedy', **STRICT), sys.argv[1], x); "
        "up = torch.nn.Upsample(scale_factor=2).eval(); y = torch.ones(1, 2, 4, 4); "
        "program = torch.export.export(up, (y,)).run_decompositions(); "
        "assert torch.equal(program.module()(y), up(y)); print('right')"
    )
    path = str(tmp_path / "fast.pt2")
    assert subprocess.check_output([sys.executable, "-c", code, path], text=True) == "right\n"


def test_example_inputs_are_those_of_optimise(tmp_path: Path) -> None:
    model = build(Rich)
    for inputs in (X, (X,)):
        torchrlopt.save(torchrlopt.optimise(build(Branches), inputs, **GREEDY), tmp_path / "fast.pt2")
        assert_same(build(Branches), torchrlopt.load(tmp_path / "fast.pt2"), X)
    named = {"pair": (torch.randn(3, 8), torch.randn(2)), "mask": torch.zeros(3, 8, dtype=torch.bool)}
    torchrlopt.save(torchrlopt.optimise(model, named, **GREEDY), tmp_path / "fast.pt2")
    torch.testing.assert_close(torchrlopt.load(tmp_path / "fast.pt2")(**named)["y"], model(**named)["y"])
    late = torchrlopt.optimise(build(Branches), **GREEDY)
    with pytest.raises(UnsupportedError, match=r"save needs example inputs.*save\(optimised, path, inputs\)"):
        torchrlopt.save(late, tmp_path / "late.pt2")
    assert late.report.num_graphs == 0, "nothing was compiled"


def test_weights_are_those_of_the_moment(tmp_path: Path) -> None:
    model = build(Branches)
    fast = torchrlopt.optimise(model, X, **GREEDY)
    with torch.no_grad():
        model.a.weight.mul_(2)
    torchrlopt.save(fast, tmp_path / "fast.pt2", X)
    loaded = torchrlopt.load(tmp_path / "fast.pt2")
    assert_same(model, loaded, X)
    with torch.no_grad():
        before = loaded(X)
        model.a.weight.mul_(2)
    assert torch.equal(loaded(X), before)
    assert not torch.equal(model(X), before)


@pytest.mark.parametrize("way", ["marked", "several sizes"])
def test_a_batch_that_varies_stays(way: str, tmp_path: Path) -> None:
    model, x = build(ConvNorm), torch.randn(2, 3, 8, 8)
    if way == "marked":
        torch._dynamo.mark_dynamic(x, 0)
    fast = torchrlopt.optimise(model, x, **GREEDY)
    if way != "marked":
        fast(torch.randn(4, 3, 8, 8))
    report = torchrlopt.save(fast, tmp_path / "fast.pt2", x)
    assert report.step_counts() != {}
    loaded = torchrlopt.load(tmp_path / "fast.pt2")
    for batch in (2, 3, 7):
        assert_same(model, loaded, torch.randn(batch, 3, 8, 8))


def test_the_users_dynamic_shapes(tmp_path: Path) -> None:
    model, batch = build(Branches), torch.export.Dim("batch", min=2, max=64)
    fast = torchrlopt.optimise(model, X, **GREEDY)
    torchrlopt.save(fast, tmp_path / "fast.pt2", X, dynamic_shapes={"x": {0: batch}})
    assert_same(model, torchrlopt.load(tmp_path / "fast.pt2"), torch.randn(9, 16))
    one = torch.randn(1, 16)
    with pytest.raises(UnsupportedError, match="at least 2"):
        torchrlopt.save(fast, tmp_path / "one.pt2", one, dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
    torchrlopt.save(fast, tmp_path / "one.pt2", one, dynamic_shapes={})


def test_containers_keywords_and_constants(tmp_path: Path) -> None:
    model = build(Rich)
    args = {"pair": (torch.randn(3, 8), torch.randn(2)), "mask": torch.rand(3, 8) > 0.5, "scale": 3.0}
    fast = torchrlopt.optimise(model, args, **GREEDY)
    torchrlopt.save(fast, tmp_path / "fast.pt2", args)
    loaded = torchrlopt.load(tmp_path / "fast.pt2")
    with torch.no_grad():
        expected, got = model(**args), loaded(**args)
        wide = {**args, "pair": tuple(map(widened, args["pair"]))}
        reference = build(Rich).double()(**wide)
    assert got.keys() == expected.keys()
    for name in expected:
        assert_right(got[name], expected[name], reference[name])


def test_inductor_s_graph_is_saved_too(tmp_path: Path) -> None:
    model = build(Branches)
    torchrlopt.save(torchrlopt.optimise(model, X, **GREEDY, executor="inductor"), tmp_path / "fast.pt2", X)
    assert_same(model, torchrlopt.load(tmp_path / "fast.pt2"), X)


@pytest.mark.parametrize("executor", RUNTIMES)
def test_other_runtimes_graphs_are_refused(executor: str, tmp_path: Path) -> None:
    fast = torchrlopt.optimise(build(Branches), X, **GREEDY, executor=executor)
    with pytest.raises(UnsupportedError, match=r"executor='eager'.*optimise_onnx"):
        torchrlopt.save(fast, tmp_path / "fast.pt2", X)
    assert not list(tmp_path.glob("fast*"))


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(self.lin(x)) + self.lin(x + 1)


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lin(x) + torch.relu(self.lin(x))
        return y + 1 if bool(y.sum() > 0) else y - 1


def test_what_cannot_be_saved_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fast.pt2"
    with pytest.raises(UnsupportedError, match="takes what optimise returns"):
        torchrlopt.save(build(Branches), path, X)  # type: ignore[arg-type]
    kept = torchrlopt.optimise(build(Branches), X, min_gain=0.99, searcher="greedy")
    with pytest.raises(UnsupportedError, match=r"the original runs.*not faster.*torch.export.save"):
        torchrlopt.save(kept, path, X)
    with pytest.raises(UnsupportedError, match="writes to calls"):
        torchrlopt.save(torchrlopt.optimise(build(Counts), X, **GREEDY), path, X)
    with pytest.raises(CaptureError, match=r"torch.export refuses"):
        torchrlopt.save(torchrlopt.optimise(build(Decides), X, **GREEDY), path, X)
    fast = torchrlopt.optimise(build(Branches), X, **GREEDY)
    plain = contestant.write

    def wrong(program: Any) -> Any:  # as a false substitution would
        graph = _C.parse_graph(program.graph.text().replace("Tanh", "Sigmoid"))
        return plain(dataclasses.replace(program, graph=graph))

    monkeypatch.setattr(contestant, "write", wrong)
    with pytest.raises(VerificationError):
        torchrlopt.save(fast, path, X)
    assert not path.exists()


def test_what_is_no_saved_model(tmp_path: Path) -> None:
    (tmp_path / "text.pt2").write_text("hello")
    with pytest.raises(ModelFormatError, match=r"text\.pt2"):
        torchrlopt.load(tmp_path / "text.pt2")


def test_a_file_that_is_not_there_is_one_error_and_no_log_of_torch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelFormatError, match=r"there is none; where: .*nothing\.pt2"):
        torchrlopt.load(tmp_path / "nothing.pt2")
    assert capfd.readouterr().err == ""
