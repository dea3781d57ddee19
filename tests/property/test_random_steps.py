"""Any sequence of steps gives an equivalent graph: soundness never depends on the searcher.

Random walks over the shipped library, written, lowered and run in float64, in which only a wrong
substitution, writer or converter can cause a difference larger than rounding.
"""

from __future__ import annotations

import dataclasses
import functools
import random

import pytest
import torch
from torch import Tensor, nn

from tests.capture.capture_calls import Capture, capture_module
from tests.crosses import nightly_but
from tests.e2e.models import Branches, ConvNorm
from torchrlopt.errors import SubstitutionError
from torchrlopt.executors.registry import get
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.writer import write
from torchrlopt.options import LoweringOptions
from torchrlopt.substitutions import load_library

NUM_STEPS = 25


class Adapters(nn.Module):
    """Three linears that share an input, each with a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(12, 2, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(2, 12, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (a(x) + c(b(x)) * 0.5 for a, b, c in zip(self.linears, self.down, self.up, strict=True))
        return nn.functional.scaled_dot_product_attention(q, k, v) + x


class Sums(nn.Module):
    """Parallel convolutions with normalisation, summed, as a RepVGG block in training form."""

    def __init__(self) -> None:
        super().__init__()
        self.three, self.one = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.norms
        return (a(self.three(x)) + b(self.one(x)) + c(x)).relu()


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "branches": (Branches, (4, 16)),
    "conv_norm": (ConvNorm, (2, 3, 8, 8)),
    "adapters": (Adapters, (2, 5, 12)),
    "sums": (Sums, (2, 4, 6, 6)),
    "encoder": (functools.partial(nn.TransformerEncoderLayer, 8, 2, 16), (3, 5, 8)),  # type: ignore[dict-item]
}


@functools.cache
def captured(name: str) -> Capture:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    module = make().eval().double()
    for buffer in module.buffers():
        if buffer.is_floating_point():
            torch.nn.init.uniform_(buffer, 0.5, 1.5)
    return capture_module(module, torch.randn(shape, dtype=torch.float64))


@pytest.mark.parametrize("seed", nightly_but(range(3), range(8)))
@pytest.mark.parametrize("name", MODELS)
def test_a_random_walk_changes_nothing(name: str, seed: int) -> None:
    record, library, draw = captured(name), load_library(), random.Random(seed)
    source = record.captured
    program = read(source.model, source.static_inputs | source.constants.keys())
    graph, steps = program.graph, []
    for _ in range(NUM_STEPS):
        names = draw.sample(library.names, len(library.names))
        counts = ((name, len(library.matches(graph, name))) for name in names)
        found = next(((name, draw.randrange(count)) for name, count in counts if count), None)
        if found is None:
            break
        try:
            graph = library.apply(graph, *found)
        except SubstitutionError:
            continue  # the match would change a type: refused, nothing happened
        steps.append(found)
    assert steps
    lowered = get("eager").lower(
        write(dataclasses.replace(program, graph=graph)), source, LoweringOptions(numerics="strict")
    )
    for mine, theirs in zip(lowered(*record.inputs), record.outputs, strict=True):
        assert mine.stride() == theirs.stride(), steps
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11, msg=lambda m: f"{m}\nsteps: {steps}")
