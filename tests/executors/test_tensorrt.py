"""The TensorRT executor: every name it uses against the published bindings; engines if there is a GPU."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.e2e.models import lowered

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "torchrlopt" / "executors" / "tensorrt" / f"{name}.py" for name in ("build", "engine")]
TABLE = Path(__file__).with_name("tensorrt_api.txt")
VERSIONS = {"10.13", "11"}


def table() -> dict[str, set[str]]:
    """The versions that have each name."""
    lines = [line.split() for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    assert len({line[0] for line in lines}) == len(lines), "a name stands twice in the table"
    return {line[0]: set(line[1:]) for line in lines}


class Names(ast.NodeVisitor):
    """The names of TensorRT that a module uses: `trt.X.Y`, and members of what is annotated with a class.

    Attributes:
        used: `Class`, `Class.member` or `Enumeration.MEMBER`.
        untyped: variables that are given an object of TensorRT without an annotation.
    """

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.untyped: list[str] = []
        self._classes: dict[str, list[str]] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outside = dict(self._classes)
        for argument in node.args.args:
            self._declare(argument.arg, argument.annotation)
        self.generic_visit(node)
        self._classes = outside | {k: v for k, v in self._classes.items() if k.startswith("self.")}

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [ast.unparse(base) for base in node.bases if ast.unparse(base).startswith("trt.")]
        for base in bases:  # what TensorRT calls
            methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
            self.used |= {f"{base[4:]}.{name}" for name in methods if name in CALLED[base[4:]]}
        # attributes are known in all methods, whatever their order
        for each in ast.walk(node):
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Attribute):
                self._declare(ast.unparse(each.target), each.annotation)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._declare(ast.unparse(node.target), node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).startswith("trt."):
            self.untyped += [ast.unparse(target) for target in node.targets]
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        text = ast.unparse(node)
        owner = ast.unparse(node.value)
        if text.startswith("trt."):
            self.used.add(text[4:])
            return  # `trt.A.B` is one name, not `trt.A` besides
        if owner in self._classes:
            self.used |= {f"{each}.{node.attr}" for each in self._classes[owner]}
        self.generic_visit(node)

    def _declare(self, name: str, annotation: ast.expr | None) -> None:
        text = "" if annotation is None else ast.unparse(annotation)
        classes = [part[4:] for part in text.split(" | ") if part.startswith("trt.")]
        if classes:
            self._classes[name] = classes


CALLED = {
    "ILogger": ("log",),
    "IProgressMonitor": ("phase_start", "step_complete", "phase_finish"),
    "IOutputAllocator": ("reallocate_output_async", "notify_shape"),
}


def names_used() -> Names:
    names = Names()
    for path in FILES:
        names.visit(ast.parse(path.read_text(encoding="utf-8")))
    return names


def plain(used: set[str]) -> set[str]:
    """Names in the table's form: no constructor calls by `__init__`, no members of members."""
    found = set()
    for name in used:
        parts = [part for part in name.split(".") if part != "__init__"]
        found.add(".".join(parts[:2]))
    return found


def test_every_name_is_in_the_published_bindings_of_both_versions() -> None:
    known = table()
    used = plain(names_used().used)
    assert len(used) > 50, "the test no longer sees what the module uses"
    missing = {name for name in used if known.get(name, set()) != VERSIONS}
    assert missing == set()


def test_the_table_holds_what_is_used_and_nothing_else() -> None:
    assert set(table()) == plain(names_used().used)


def test_objects_of_tensorrt_are_annotated() -> None:
    assert names_used().untyped == []


def test_the_test_sees_a_wrong_name() -> None:
    names = Names()
    names.visit(ast.parse("def f(b: trt.Builder) -> None:\n    b.create_netwrk()\n    trt.NoSuchThing(b)\n"))
    assert names.used == {"Builder", "Builder.create_netwrk", "NoSuchThing"}


@pytest.mark.tensorrt
def test_the_installed_bindings_have_every_name() -> None:
    trt = pytest.importorskip("tensorrt")
    for name in table():
        held: Any = trt
        for part in name.split("."):
            assert hasattr(held, part), name
            held = getattr(held, part)


# ---- engines


@pytest.fixture
def gpu() -> torch.device:
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    return torch.device("cuda")


class Net(nn.Module):
    """Two branches that fold into one convolution, a gate, two linears that merge."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16)
        self.left, self.right = nn.Linear(16, 6), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = nn.functional.silu(self.norm(self.a(x) + self.b(x)))
        z = y.mean((2, 3))
        return torch.cat([self.left(z), self.right(z)], 1), y.transpose(1, 3)


def build(device: torch.device, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    return Net().eval().to(device), torch.randn(2, 3, 24, 24, device=device)


def optimised(model: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    settings = {"executor": "tensorrt", "on_error": "raise", "min_gain": -10.0, **options}
    return torchrlopt.optimise(model, x, **settings)


def check(ours: Any, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        for got, expected in zip(ours(x), model(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4, check_stride=True)


@pytest.mark.tensorrt
@pytest.mark.parametrize("settings", [{"refit": True}, {"refit": False}])
def test_weights_that_change(gpu: torch.device, settings: dict[str, Any]) -> None:
    model, x = build(gpu)
    ours = optimised(model, x, executor_options=settings)
    assert (ours.report.kept, ours.report.executor) == ("rewritten", "tensorrt")
    check(ours, model, x)
    before = lowered().maker.num_builds
    with torch.no_grad():
        model.a.weight.mul_(-0.5)
    check(ours, model, x)
    model.load_state_dict(build(gpu, 1)[0].state_dict())
    check(ours, model, x)
    built = lowered().maker.num_builds - before
    assert built == (0 if settings["refit"] else 2)


@pytest.mark.tensorrt
def test_plans_are_kept_on_disk_and_damaged_ones_are_rebuilt(gpu: torch.device, own_store: Path) -> None:
    model, x = build(gpu)
    check(optimised(model, x), model, x)
    assert lowered().maker.num_builds == 1
    (plan,) = (own_store / "tensorrt").glob("*.plan")
    assert list((own_store / "tensorrt").glob("timings-*"))
    check(optimised(model, x), model, x)
    assert lowered().maker.num_builds == 0
    plan.write_bytes(plan.read_bytes()[:-10])
    check(optimised(model, x), model, x)
    assert lowered().maker.num_builds == 1


@pytest.mark.tensorrt
def test_sizes_out_of_range_run_in_torch(gpu: torch.device) -> None:
    model = nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.Linear(16, 4)).eval().to(gpu)
    options = {
        "executor": "tensorrt", "on_error": "raise", "min_gain": -10.0, "executor_options": {"max_factor": 2},
    }  # fmt: skip
    torch._dynamo.reset()
    ours = torch.compile(model, backend="rlopt", options=options, dynamic=True)
    for rows, fallbacks in ((8, 0), (5, 0), (16, 0), (17, 1), (3, 1)):
        x = torch.randn(rows, 7, device=gpu)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), model(x), rtol=1e-3, atol=1e-4)
        assert lowered().num_fallbacks == fallbacks


@pytest.mark.tensorrt
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types_stay_what_they_are(gpu: torch.device, dtype: torch.dtype) -> None:
    model, x = build(gpu)
    model, x = model.to(dtype), x.to(dtype)
    ours = optimised(model, x)
    with torch.no_grad():
        assert [y.dtype for y in ours(x)] == [dtype, dtype]


@pytest.mark.tensorrt
def test_runs_in_order_with_the_streams_of_torch(gpu: torch.device) -> None:
    model, x = build(gpu)
    ours = optimised(model, x)
    side = torch.cuda.Stream()
    with torch.no_grad():
        expected = model(x * 2)[0]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(20):
                got = ours(x * 2)[0]
        torch.cuda.current_stream().wait_stream(side)
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.tensorrt
def test_it_is_the_default_on_cuda(gpu: torch.device) -> None:
    model, x = build(gpu)
    assert optimised(model, x, executor="default").report.executor == "tensorrt"


@pytest.mark.tensorrt
def test_an_operator_that_the_parser_refuses_costs_no_more_than_itself(gpu: torch.device) -> None:
    class Bits(nn.Module):
        """TensorRT has no bitwise operators of integers."""

        def __init__(self) -> None:
            super().__init__()
            self.towers = nn.ModuleList(
                nn.Sequential(*(nn.Linear(512, 512) for _ in range(24))) for _ in range(2)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.towers[0](x)
            return self.towers[1](y * (torch.bitwise_and((y * 8).int(), 3) + 1))

    torch.manual_seed(0)
    model, x = Bits().eval().to(gpu), torch.randn(512, 512, device=gpu)
    ours = optimised(model, x, measure=False)
    assert {part.executor for part in ours.report.parts} == {"tensorrt", "eager"}
