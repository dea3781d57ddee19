"""All entry points plan the same graph: torch.compile, optimise, explain, profile, baselines, training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchrlopt
from baselines import models
from baselines.graphs import graph_of
from tests.crosses import nightly_but
from torchrlopt.api.explain import explainer
from torchrlopt.compile import attempt
from torchrlopt.errors import UnsupportedError
from torchrlopt.machine import profiling
from torchrlopt.plan.search import graph_hash
from training.device.measure import graphs_of

EAGER = {"executor": "eager"}  # one graph is planned once


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hashes of the graphs that are to be planned; planning itself is refused, which leaves the original."""
    seen: list[str] = []

    def refuse(subject: Any, *_: Any) -> Any:
        seen.append(graph_hash(subject.program.graph))
        raise UnsupportedError("only the graph is asked for")

    monkeypatch.setattr(attempt, "make_plan", refuse)
    monkeypatch.setattr(explainer, "make_plan", refuse)
    return seen


@pytest.mark.parametrize("name", nightly_but(["resnet18"], models.NAMES))
def test_every_door_plans_the_same_graph(name: str, planned: list[str]) -> None:
    model, inputs = models.build(name)
    with torch.no_grad():
        torch.compile(model, backend="rlopt", options=EAGER)(*inputs)
    # weights come first here, and no call passes them
    torchrlopt.optimise(model, inputs, weights="frozen", **EAGER)
    doors = dict(zip(("torch.compile", "frozen"), planned, strict=True))
    doors["baselines"] = graph_hash(graph_of(name))
    assert doors == dict.fromkeys(doors, doors["baselines"])


@pytest.mark.nightly
def test_the_other_doors_plan_it_too(planned: list[str]) -> None:
    model, inputs = models.build("toy_bert")
    with pytest.raises(UnsupportedError, match="only the graph"):
        torchrlopt.explain(model, inputs)
    (source,) = profiling.trace(model, inputs)
    (training,) = graphs_of(["toy_bert"]).values()
    torchrlopt.optimise(model, inputs, **EAGER)
    wanted = graph_hash(graph_of("toy_bert"))
    assert [*planned, graph_hash(source.program.graph), graph_hash(training)] == [wanted] * 4
