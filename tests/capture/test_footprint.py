"""Memory estimates of a graph, from its types."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from tests.onnx.onnx_text import model_of
from torchrlopt.capture import footprint
from torchrlopt.capture.footprint import check_footprint, cpu_bytes_of_calls, peak_bytes
from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.lowering.onnx_to_aten import lower_model

CHAIN = "g (float[10,10] x) => (float[10,10] d) { a = Relu(x) b = Neg(a) c = Abs(b) d = Exp(c) }"


def test_only_what_lives_at_the_same_time_counts() -> None:
    assert peak_bytes(lower_model(model_of(CHAIN))) == 3 * 100 * 8  # the input, and two steps of the chain


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = lower_model(model_of(CHAIN))
    monkeypatch.setattr(footprint, "MAX_BYTES", 2400)
    check_footprint(module, "the check")
    monkeypatch.setattr(footprint, "MAX_BYTES", 2399)
    with pytest.raises(UnsupportedError, match="too large for the check"):
        check_footprint(module, "the check")


def test_the_peak_of_calls_counts_what_lives_at_the_same_time() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes = [x]
    for size, sources in ((100, [0]), (50, [1]), (10, [2]), (7, [3, 2])):
        node = graph.call_function(torch.add, tuple(nodes[source] for source in sources))
        node.meta["val"] = torch.empty(size, dtype=torch.float64)
        nodes.append(node)
    x.meta["val"] = torch.empty(10**6)
    graph.output(nodes[-1])
    assert cpu_bytes_of_calls(graph) == 150 * 8, "the first two; then 50 + 10 + 7 and less"
