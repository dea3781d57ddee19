"""Wide and deep graphs are built, edited and hashed in time proportional to their size.

At these sizes a step that visits all readers of a value for each of them would take many minutes: with one
value, 6,000 readers took three seconds, and these graphs have up to thirty times as many.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import torchrlopt
from tests.onnx.onnx_text import proto_of
from torchrlopt import _C
from torchrlopt.errors import ModelFormatError
from torchrlopt.substitutions import load_library

TYPE = ("f32", [4])
MANY = 100_000


def builder() -> tuple[_C.GraphBuilder, tuple[int, int]]:
    made = _C.GraphBuilder()
    return made, (made.add_input("x", TYPE), 0)


def test_many_equal_readers_of_one_value() -> None:
    """They compute the same and are different nodes all the same, which each has to find out."""
    made, x = builder()
    for _ in range(MANY):
        last = made.add_node("Relu", [x], {})
    made.set_outputs([(last, 0)], ["y"])
    graph = made.finish()
    assert graph.num_operators == MANY
    assert len(graph.topological_order()) == MANY + 1
    assert isinstance(graph.hash(), int)


def test_a_jump_behind_many_operands() -> None:
    """That the bits are to be kept is told to each of the operands."""
    made, x = builder()
    values = [(made.add_node("Relu", [x], {}), 0) for _ in range(MANY)]
    joined = (made.add_node("Concat", values, {"axis": 0}), 0)
    made.set_outputs([(made.add_node("Floor", [joined], {}), 0)], ["y"])
    graph = made.finish()
    assert all(graph.node(id_)["keeps_bits"] for id_, _ in values[:: MANY // 100])


def test_many_parts_of_one_value() -> None:
    """What would be wrong with a size is not written down for each of them."""
    count = 20_000
    made = _C.GraphBuilder()
    x = (made.add_input("x", ("f32", [count])), 0)
    split = made.add_node("Split", [x], {"axis": 0, "sizes": [1] * count})
    made.set_outputs([(split, count - 1)], ["y"])
    assert made.finish().type((split, count - 1)) == ("f32", [1])


def test_types_of_very_many_dims_are_not_inferred() -> None:
    made = _C.GraphBuilder()
    fits, wide = (made.add_input(f"x{rank}", ("f32", [1] * rank)) for rank in (64, 65))
    made.add_node("Relu", [(fits, 0)], {})
    with pytest.raises(ModelFormatError, match="up to 64 dims"):
        made.add_node("Relu", [(wide, 0)], {})


def readers(count: int) -> _C.Graph:
    made, x = builder()
    for _ in range(count):
        last = made.add_node("Relu", [x], {})
    made.set_outputs([(last, 0)], ["y"])
    return made.finish()


def test_a_graph_of_very_many_matches_is_refused() -> None:
    """Each pair of equal nodes can be shared; 20,000 nodes would have 200 million pairs, and all are kept."""
    library = load_library()
    assert len(_C.MatchSet(readers(1000), library)) == 1000 * 999 // 2
    for count in (1001, 20_000):
        with pytest.raises(ModelFormatError, match="more than 500000 places"):
            _C.MatchSet(readers(count), library)


def test_of_a_file_with_very_many_matches_the_original_is_written(tmp_path: Path) -> None:
    count = 3000
    body = "\n".join(f"v{number} = Relu(x)" for number in range(count))
    results = ", ".join(f"float[2] v{number}" for number in range(count))
    proto = proto_of(f"g (float[2] x) => ({results}) {{ {body} }}")
    onnx.save(proto, tmp_path / "in.onnx")
    report = torchrlopt.optimise_onnx(tmp_path / "in.onnx", tmp_path / "out.onnx", searcher="greedy")
    assert report.kept == "original"
    assert "more than 500000 places" in str(report.fallback_reason)
    assert len(onnx.load(tmp_path / "out.onnx").graph.node) == count
