"""The single entry point for tracing, facts about traced graphs: torchrlopt/capture/{trace,aten,job}.py."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.e2e.models import QUICK
from torchrlopt.capture.aten import content_key
from torchrlopt.capture.job import graph_of, jobs_of
from torchrlopt.capture.trace import RECORDS_GRADIENTS, Traced, trace, visit
from torchrlopt.compile.backend import reports
from torchrlopt.errors import CaptureError, UnsupportedError


def traced(model: Any, *inputs: Any) -> Traced:
    """The only graph of a call."""
    found: list[Traced] = []
    visit(model, inputs, found.append, pytest.fail)
    (only,) = found
    return only


def key_with(held: Any) -> str:
    """The content key of a graph that holds a constant."""
    graph = torch.fx.Graph()
    node = graph.get_attr("held")
    node.meta["val"] = None
    graph.output((node,))
    root = nn.Module()
    root.held = held
    return content_key(torch.fx.GraphModule(root, graph), ())


class Weighed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.relu(self.linear(x)) * scale


@pytest.mark.parametrize("size", [10, 100_000])
def test_constants_are_known_by_content(size: int) -> None:
    values = torch.randn(size)
    other = values.clone()
    assert key_with(values) == key_with(other)
    other[-1] += 1
    assert key_with(values) != key_with(other)
    assert key_with(values) != key_with(values.double())


def test_the_autocast_of_the_caller_is_a_part_of_the_content() -> None:
    """Nothing is cast in a model of the same dtype; its operators take their time to find that out."""
    model, x = Weighed().eval().bfloat16(), torch.randn(2, 4, dtype=torch.bfloat16)
    plain = traced(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        casting = traced(model, x)
    assert str(casting.aten.graph) == str(plain.aten.graph)
    assert casting.autocast == ("cpu bfloat16",)
    assert casting.content != plain.content == traced(model, x).content


def test_what_nobody_can_see_is_equal_to_nothing() -> None:
    for held in (object(), torch.empty(3, device="meta")):
        assert key_with(held) != key_with(held)


def test_functions_are_known_by_name() -> None:
    """Their address differs from process to process."""

    def key() -> str:
        def doubled(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        graph = torch.fx.Graph()
        graph.output((graph.call_function(doubled, (graph.placeholder("x"),)),))
        return content_key(torch.fx.GraphModule(nn.Module(), graph), ())

    assert key() == key()


def test_strides_are_part_of_the_content() -> None:
    conv = nn.Conv2d(3, 4, 3).eval()
    x = torch.randn(1, 3, 8, 8)
    plain, last = traced(conv, x), traced(conv, x.to(memory_format=torch.channels_last))
    assert plain.content != last.content


def test_a_traced_graph_says_what_it_was_traced_for() -> None:
    model, x = Weighed().eval(), torch.randn(5, 4)
    found = traced(model, x)
    weights = [found.inputs[i] for i in found.static]
    assert {id(each) for each in weights} == {id(each) for each in model.parameters()}
    assert (found.device, found.sizes, found.num_lifted) == (torch.device("cpu"), {}, 0)
    torch.testing.assert_close(found.aten(*found.inputs)[0], model(x))


def test_inputs_that_are_written_to_are_copied_when_asked_for() -> None:
    buffer, x = torch.zeros(3), torch.ones(3)

    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.add_(x)
        return state * 2

    found = traced(step, buffer, x)
    (position,) = found.mutated
    before = found.inputs[position].clone()
    copies = found.own_inputs()
    copies[position].fill_(7)
    torch.testing.assert_close(found.inputs[position], before)
    assert found.inputs[1 - position] is copies[1 - position]
    torch.testing.assert_close(found.own_inputs()[position], before)


def test_copies_have_the_strides_of_what_they_stand_for() -> None:
    window = torch.arange(12.0).reshape(3, 4)[:, 1:3]

    def step(state: torch.Tensor) -> torch.Tensor:
        state.mul_(2)
        return state + 1

    found = traced(step, window)
    (copy,) = found.own_inputs()
    assert copy.stride() == window.stride()
    torch.testing.assert_close(copy, window)


def test_reasons_to_leave_a_graph_alone_are_told() -> None:
    reasons: list[str] = []
    visit(lambda x: x + torch.rand(3), (torch.ones(3),), lambda _: pytest.fail("traced"), reasons.append)
    assert "random" in reasons[0]
    with pytest.raises(CaptureError, match="random"):
        jobs_of(lambda x: x + torch.rand(3), (torch.ones(3),))


class Image(torch.Tensor):
    """A tensor with another name, as datasets and libraries have them."""


class Named(nn.Parameter):
    """The tensor under a parameter is a plain one."""


def test_subclasses_of_tensors_are_left_alone() -> None:
    model, x = Weighed().eval(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="rlopt", options=QUICK)
    with torch.no_grad():
        got = compiled(x.as_subclass(Image))
        assert type(got) is Image
        torch.testing.assert_close(got.as_subclass(torch.Tensor), model(x))
        assert reports()[-1].fallback_reason == "an input is a Image"
        model.linear.weight = Named(model.linear.weight.data)
        torch.testing.assert_close(compiled(x), model(x))
    assert reports()[-1].kept == "rewritten"


def test_a_graph_that_records_gradients_is_left_alone() -> None:
    reasons: list[str] = []

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return trace(gm, examples, lambda _: pytest.fail("traced"), reasons.append)

    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: x * 2, backend=backend)(x).sum().backward()
    assert reasons == [RECORDS_GRADIENTS]
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


def test_a_module_in_training_mode_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="training mode"):
        jobs_of(Weighed(), (torch.randn(2, 4),))


def test_an_exported_module_has_no_mode() -> None:
    """It cannot be told to be in another mode than that of its operators."""
    exported = torch.export.export(Weighed().eval(), (torch.randn(2, 4),)).module()
    exported.training = True  # as in what torchao makes of it
    with pytest.raises(NotImplementedError):
        exported.eval()
    assert len(jobs_of(exported, (torch.randn(2, 4),))) == 1


def test_a_module_that_was_exported_in_training_mode_trains() -> None:
    """By its operators, which update statistics in every call."""
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), torch.randn(8, 4)
    exported = torch.export.export(model.train(), (x,)).module()
    before = exported.state_dict()["1.running_mean"].clone()
    with pytest.raises(UnsupportedError, match="training mode"):
        jobs_of(exported, (x,))
    assert torch.equal(exported.state_dict()["1.running_mean"], before)


def test_arguments_by_name_and_a_lone_tensor() -> None:
    model, x = Weighed().eval(), torch.randn(2, 4)
    hashes = {graph_of(model, each).canonical_text() for each in ((x,), {"x": x}, x)}
    assert len(hashes) == 1


def test_a_model_of_several_graphs_is_not_one() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x)
        torch._dynamo.graph_break()
        return torch.tanh(x)

    assert len(jobs_of(broken, (torch.randn(3),))) == 2
    with pytest.raises(CaptureError, match="2 graphs"):
        graph_of(broken, (torch.randn(3),))


def test_nothing_of_ours_keeps_the_inputs_alive() -> None:
    x = torch.randn(3)
    alive = weakref.ref(x)
    model = Weighed().eval()
    traced(model, torch.randn(2, 4))
    visit(lambda x: x * 2, (x,), lambda _: None, pytest.fail)
    del x
    gc.collect()
    assert alive() is None
