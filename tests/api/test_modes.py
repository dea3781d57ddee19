"""The modes of torch.compile that the backend supports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from torchrlopt.compile import backend
from torchrlopt.errors import OptionsError
from torchrlopt.options import Options


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        (None, {}, ("default", False)),
        ("reduce-overhead", {}, ("default", True)),
        ("max-autotune", {}, ("auto", True)),
        ("max-autotune-no-cudagraphs", {}, ("auto", False)),
        ("max-autotune", {"cuda_graphs": False}, ("auto", False)),
        ("max-autotune", {"lowering": {"cuda_graphs": False}}, ("auto", False)),
        ("reduce-overhead", {"executor": "inductor"}, ("inductor", True)),
        (None, {"mode": "max-autotune"}, ("auto", True)),
    ],
)
def test_what_modes_stand_for(
    mode: str | None, options: dict[str, Any], expected: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Options] = []
    monkeypatch.setattr(backend, "compile_graph", lambda gm, inputs, chosen, record: seen.append(chosen))
    backend.rlopt(torch.fx.symbolic_trace(nn.ReLU()), [], options=options, mode=mode)
    (chosen,) = seen
    assert (chosen.executor, chosen.lowering.cuda_graphs) == expected
    assert chosen.lowering.on("cuda") == chosen.lowering
    assert not chosen.lowering.on("cpu").cuda_graphs


def test_optimise_takes_the_modes_of_torch_compile() -> None:
    later = torchrlopt.optimise(nn.ReLU().eval(), mode="max-autotune", cuda_graphs=False)
    options = later._torchrlopt_runner.options
    assert (options.executor, options.lowering.cuda_graphs) == ("auto", False)
    with pytest.raises(OptionsError, match="did you mean 'max-autotune'"):
        torchrlopt.optimise(nn.ReLU().eval(), mode="max_autotune")
