"""Random valid models from NNSmith (Liu et al., ASPLOS 2023): walked as ONNX models, and compiled.

The package is optional (`pip install '.[fuzz]'`). It rarely generates convolutions and often operators that
no library rewrites: rule-directed graphs reach deeper, these are further from what we anticipated.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from tests.fuzz.kept import Case, format_case
from tests.fuzz.outcome import Outcome
from tests.fuzz.rules.comparing import compare
from tests.fuzz.rules.walking import walk
from tests.fuzz.shards import first_line
from torchrlopt import _C
from torchrlopt.compile import backend
from torchrlopt.errors import LoweringError, ModelFormatError, RlOptError, UnsupportedError
from torchrlopt.executors.registry import get
from torchrlopt.onnx.files import prepared
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.writer import write
from torchrlopt.options import LoweringOptions
from torchrlopt.substitutions import load_library

MAX_STEPS = 20
COMPILED: dict[str, Any] = {"on_error": "raise", "measure": False, "cache": False, "prices": "typical"}
_MAX_ELEMENTS = 1024  # of a tensor: the reference interpreter is slow
_OPSET = 18
_SHAKE = 1e-5  # relative change of the inputs that stands for some hundred roundings to float32
_ROUNDED_CONSTANTS = 1e-6  # of the largest element: formulas of float32 models hold rounded constants
_TOLERANCE = 1e-4  # of the largest element, more in 16 bits; beyond that, conditioning has to explain it

Run = Callable[..., Sequence[Any]]


class Generated(nn.Module):
    """A model of NNSmith without what it does for its own purposes.

    Args:
        net: NNSmith's `SymbolNet`.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run its instructions in order."""
        values = dict(self.net.named_parameters(recurse=False))
        values.update(zip(self.net.input_map, inputs, strict=True))
        for function, reads, writes, _ in self.net.instructions:
            found = function(*[values[name] for name in reads])
            found = found if isinstance(found, (list, tuple)) else (found,)
            values.update(zip(writes, found, strict=True))
        return tuple(values[name] for name in self.net.output_map)


@functools.cache
def _operators() -> list[Any]:
    from nnsmith.materialize.torch import TorchModel

    TorchModel.add_seed_setter()
    return [op for op in TorchModel.operators() if not op.limit_domain]


def generate(seed: int) -> tuple[Generated, list[Tensor]]:
    """A model and inputs for it: the same for the same seed."""
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize.torch.symbolnet import SymbolNet, random_tensor

    draw = random.Random(seed)
    random.seed(seed)
    torch.manual_seed(seed)
    made = model_gen(
        opset=_operators(),
        method="symbolic-cinit",
        seed=draw.randrange(2**31),
        max_nodes=draw.randint(4, 16),
        max_elem_per_tensor=_MAX_ELEMENTS,
        timeout_ms=10_000,
    )
    net = SymbolNet(made.make_concrete()).eval()
    for parameter in net.parameters():
        if parameter.is_floating_point():
            nn.init.uniform_(parameter, -1, 1)
    inputs = [random_tensor(like.shape, like.dtype.torch(), base=1.5) for like in net.input_like.values()]
    return Generated(net), inputs


class _Fuzzer:
    """What both have in common: a case is a model."""

    what = ""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def run(self, index: int) -> Outcome:
        """Generate the model of that number, and look at it."""
        seed = self._seed * 1_000_003 + index
        try:
            model, inputs = generate(seed)
            with torch.no_grad():
                expected = model(*inputs)
        except Exception as error:  # noqa: BLE001 - a model that PyTorch does not run is none
            return Outcome("skipped", f"PyTorch: {first_line(error)[:80]}")
        outcome = self.check(model, inputs, expected, seed)
        if outcome.kind != "right":
            outcome.case = format_case(self.what, {"model": str(seed)})
        return outcome

    def check(self, model: Generated, inputs: list[Tensor], expected: Sequence[Tensor], seed: int) -> Outcome:
        """What comes of a model."""
        raise NotImplementedError


class WalkFuzzer(_Fuzzer):
    """Exported to ONNX, read, walked at random, written, and run."""

    what = "nnsmith"

    def check(self, model: Generated, inputs: list[Tensor], expected: Sequence[Tensor], seed: int) -> Outcome:
        """Compare the graphs in the reference interpreter and lowered, and what was read with ONNX Runtime.

        Not with PyTorch: its exporter changes types, and rounds halves to the other side.
        """
        try:
            proto = _exported(model, inputs)
        except Exception as error:  # noqa: BLE001 - the exporter is PyTorch's
            return Outcome("skipped", f"export: {first_line(error)[:80]}")
        try:
            program = read(prepared(proto))
            taken = walk(program.graph, load_library(), [], random.Random(seed), MAX_STEPS)
            runs = [_lowered(dataclasses.replace(program, graph=g)) for g in (program.graph, taken.last)]
        except (LoweringError, UnsupportedError) as error:
            return Outcome("skipped", f"not supported: {error.what} {error.got}")
        counts = Counter({"steps": len(taken.steps), "operators": program.graph.num_operators})
        # The exporter gives an input that nothing reads away.
        names = [value.name for value in proto.graph.input]
        given = [x for x, name in zip(inputs, model.net.input_map, strict=True) if name in names]
        by, told = _referee(program.graph, taken.last, seed)
        counts[f"decided by {by}"] += 1
        if told:
            return Outcome("wrong", told, counts=counts)
        as_read, after = runs
        with torch.no_grad():
            if told := _far(as_read, given, as_read(*given), after(*given)):
                return Outcome("wrong", f"after {taken.steps}: {told}", counts=counts)
            try:
                theirs = _in_onnxruntime(proto, given)
            except Exception:  # noqa: BLE001 - it has not every operator in every type
                return Outcome("right", counts=counts + Counter({"not in ONNX Runtime": 1}))
            told = _far(as_read, given, theirs, as_read(*given))
        return Outcome("wrong" if told else "right", told and f"as it was read: {told}", counts=counts)


class CompileFuzzer(_Fuzzer):
    """Through torch.compile."""

    what = "nnsmith-compile"

    def check(self, model: Generated, inputs: list[Tensor], expected: Sequence[Tensor], seed: int) -> Outcome:
        """Compare with eager PyTorch; what `aot_eager` refuses is not ours."""
        try:
            found = _compiled(model, inputs, "rlopt", COMPILED)
        except RlOptError as error:
            return Outcome("raised", first_line(error))
        except Exception as error:  # noqa: BLE001 - of Dynamo, or of ours
            try:
                _compiled(model, inputs, "aot_eager", None)
            except Exception as other:  # noqa: BLE001 - not ours, then
                return Outcome("skipped", f"aot_eager: {first_line(other)[:80]}")
            return Outcome("raised", first_line(error))
        reports = backend.reports()
        counts = Counter(
            graphs=len(reports),
            rewritten=sum(report.kept == "rewritten" for report in reports),
            steps=sum(len(report.steps) for report in reports),
        )
        told = _far(model, inputs, expected, found)
        return Outcome("wrong" if told else "right", told, counts=counts)


def _compiled(
    model: Generated, inputs: Sequence[Tensor], name: str, options: dict[str, Any] | None
) -> Sequence[Any]:
    torch._dynamo.reset()
    backend.reset()
    with torch.no_grad():
        found: Sequence[Any] = torch.compile(model, backend=name, options=options, dynamic=False)(*inputs)
        return found


def _exported(model: Generated, inputs: Sequence[Tensor]) -> onnx.ModelProto:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            tuple(inputs),
            file,
            input_names=list(model.net.input_map),
            output_names=list(model.net.output_map),
            opset_version=_OPSET,
            dynamo=False,
        )
    return onnx.load_model_from_string(file.getvalue())


def _lowered(program: Any) -> Run:
    return get("eager").lower(write(program), None, LoweringOptions())


def _in_onnxruntime(proto: onnx.ModelProto, inputs: Sequence[Tensor]) -> list[Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    feeds = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.as_tensor(np.asarray(found)) for found in session.run(None, feeds)]


def _referee(before: _C.Graph, after: _C.Graph, seed: int) -> tuple[str, str]:
    """What the reference interpreter says: how it decided, and the difference."""
    try:
        verdict = compare(before, after, seed, "signed", _ROUNDED_CONSTANTS)
    except (ModelFormatError, TypeError, ValueError):
        return "PyTorch alone", ""  # an operator that the core does not know
    return verdict.by, verdict.difference


def _far(model: Run, inputs: Sequence[Tensor], expected: Sequence[Tensor], got: Sequence[Any]) -> str:
    """How results differ beyond what a small change of the inputs does to those of the model."""
    generator = torch.Generator().manual_seed(0)
    shaken = [
        x * (1 + _SHAKE * (2 * torch.rand(x.shape, generator=generator) - 1)).to(x.dtype)
        if x.is_floating_point()
        else x
        for x in inputs
    ]
    moved: Sequence[Tensor] | None = None
    for number, (a, b) in enumerate(zip(expected, got, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"result {number}: {a.dtype}{list(a.shape)} expected, {b.dtype}{list(b.shape)} came"
        told = _apart(a, b)
        if not told:
            continue
        if moved is None:
            with torch.no_grad():
                moved = model(*shaken)
        if _distance(a, moved[number]) < _distance(a, b):
            return f"result {number}: {told}"
    return ""


def _apart(a: Tensor, b: Tensor) -> str:
    """How two results differ; what was not finite may become anything."""
    if not a.is_floating_point():
        return "" if torch.equal(a, b) else f"{int((a != b).sum())} integers differ"
    finite = a.isfinite()
    if not bool(finite.any()):
        return ""
    if not bool(b[finite].isfinite().all()):
        return "what was finite is not"
    scale = max(1.0, float(a[finite].abs().max()))
    worst = float((a[finite].double() - b[finite].double()).abs().max())
    tolerance = max(_TOLERANCE, 16 * torch.finfo(a.dtype).eps)
    return f"off by {worst:.3g} of {scale:.3g}" if worst > tolerance * scale else ""


def _distance(a: Tensor, b: Tensor) -> float:
    apart = (a.double() - b.double()).abs()
    apart = apart[~apart.isnan()]
    return float(apart.max()) if apart.numel() else 0.0


def replay(case: Case) -> str:
    """How a kept case goes wrong; empty where it does not."""
    fuzzer = WalkFuzzer(0) if case.what == "nnsmith" else CompileFuzzer(0)
    outcome = fuzzer.run(int(case.fields["model"]))
    return "" if outcome.kind in ("right", "skipped") else outcome.reason
