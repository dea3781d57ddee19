"""TASO's substitutions, converted to our notation: training/papers/taso.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError
from torchrlopt.substitutions.proof.layers import Effort
from torchrlopt.substitutions.proof.records import axioms_hash, state_of
from training.papers.graphs import BUILT_IN, LIBRARIES, TASO, library
from training.papers.taso import RULES, UnreadableError, Way, library_of, read_all, read_rule, text_of, ways
from training.papers.taso_file import OPS, read_rules

NUMBERS = {name: number for number, name in OPS.items()}
CONV = {4: 3, 5: 3, 6: 1, 7: 1, 8: 0, 9: 0}
QUICK = Effort(bindings=20, seeds=1, instances=4)
needs_z3 = pytest.mark.skipif(importlib.util.find_spec("z3") is None, reason="Z3 is not installed")

Op = tuple[str, list[tuple[int, int]], dict[int, int]]


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    return b"".join(
        varint(key << 3) + varint(value)
        if isinstance(value, int)
        else varint(key << 3 | 2) + varint(len(value)) + value
        for key, value in fields
    )


def operator(op: str, inputs: list[tuple[int, int]], parameters: dict[int, int]) -> bytes:
    pairs = [(2, message((1, a), (2, b))) for a, b in inputs]
    given = [(3, message((1, key), (2, value))) for key, value in parameters.items()]
    return message((1, NUMBERS[op]), *pairs, *given)


def rule(before: list[Op], after: list[Op], outputs: list[tuple[int, int, int, int]]) -> bytes:
    sides = [(key, operator(*each)) for key, side in ((1, before), (2, after)) for each in side]
    maps = [(3, message(*zip((1, 2, 3, 4), each, strict=True))) for each in outputs]
    return message((1, message(*sides, *maps)))


A, B, C = (-1, 0), (-2, 0), (-3, 0)
ASSOCIATION = rule(
    [("matmul", [A, B], {9: 0}), ("matmul", [(0, 0), C], {9: 0})],
    [("matmul", [B, C], {9: 0}), ("matmul", [A, (0, 0)], {9: 0})],
    [(1, 1, 0, 0)],
)
WRONG = rule([("matmul", [A, B], {9: 0})], [("matmul", [B, A], {9: 0})], [(0, 0, 0, 0)])
MERGE = rule(
    [("conv", [A, B], CONV), ("conv", [A, C], CONV)],
    [
        ("concat", [B, C], {1: 2, 11: 0, 10: 4}),
        ("conv", [A, (0, 0)], CONV),
        ("split", [(1, 0)], {2: 2, 11: 1}),
    ],
    [(0, 2, 0, 0), (1, 2, 0, 1)],
)
APART = rule([("relu", [A], {}), ("relu", [B], {})], [("relu", [A], {})] * 2, [(0, 0, 0, 0), (1, 1, 0, 0)])


def file_of(folder: Path, data: bytes) -> Path:
    path = folder / "rules.pb"
    path.write_bytes(data)
    return path


def test_rules_are_read_from_the_wire(tmp_path: Path) -> None:
    first, second = read_rules(file_of(tmp_path, ASSOCIATION + MERGE))
    assert [each.op for each in first.before] == ["matmul", "matmul"]
    assert first.before[1].inputs == ((0, 0), (-3, 0))
    assert first.outputs == (((1, 0), (1, 0)),)
    assert second.after[0].parameters == {"num_inputs": 2, "axis": 0, "rank": 4}
    assert second.outputs == (((0, 0), (2, 0)), ((1, 0), (2, 1)))


@pytest.mark.parametrize(
    "data",
    [ASSOCIATION[:-3], b"\x00" * 40, b"\xff" * 40, message((1, message((1, operator("relu", [A, B], {})))))],
    ids=["cut off", "zeros", "no end of a number", "two inputs of one operator"],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SubstitutionError, match="not a file of TASO's substitutions"):
        read_rules(file_of(tmp_path, data))


def test_a_rule_is_written_with_the_shapes_that_it_needs(tmp_path: Path) -> None:
    (merge,) = read_rules(file_of(tmp_path, MERGE))
    text = text_of(merge, Way(one_group=True))
    _C.Library(text)
    assert "  y1, y2 = Split(u2; axis=1, sizes=[dim(y1, 1), dim(y2, 1)])" in text
    assert "group=1" in text
    assert "all_equal(s, 1)" in text
    assert "group=g" in text_of(merge, next(ways(merge)))


def test_what_has_no_words_is_refused(tmp_path: Path) -> None:
    strided = rule([("conv", [A, B], CONV | {6: 2})], [("conv", [A, B], CONV)], [(0, 0, 0, 0)])
    (given,) = read_rules(file_of(tmp_path, strided))
    with pytest.raises(UnreadableError, match="stride"):
        text_of(given, Way())
    (apart,) = read_rules(file_of(tmp_path, APART))
    assert read_rule(apart).reason == "the pattern falls into parts that share no tensor"


@needs_z3
def test_only_what_is_proved_becomes_a_library_and_none_is_proved_twice(tmp_path: Path) -> None:
    rules = read_rules(file_of(tmp_path, ASSOCIATION + WRONG))
    state = tmp_path / "state.jsonl"
    readings = list(read_all(rules, state, QUICK))
    outcomes = {each.name: each.outcome for each in readings}
    assert outcomes["taso_000"] == "proved"
    assert outcomes["taso_001"] == "refused"
    known = _C.Library(library_of(readings))
    assert state_of(known, "taso_000", axioms_hash()) == "proved"
    when = state.stat().st_mtime_ns
    assert list(read_all(rules, state, QUICK)) == readings
    assert state.stat().st_mtime_ns == when


@needs_z3
def test_a_merge_of_grouped_convolutions_is_not_believed(tmp_path: Path) -> None:
    """Concatenated kernels are wrong with several groups, which TASO's program does not ask for."""
    (merge,) = read_rules(file_of(tmp_path, MERGE))
    assert "group=1" in read_rule(merge, full=QUICK).text


def test_the_library_of_tasos_rules_is_proved() -> None:
    known = _C.Library(RULES.read_text(encoding="utf-8"), False)
    axioms = axioms_hash()
    assert len(known) > 100
    assert {state_of(known, name, axioms) for name in known.names} == {"proved"}


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_are_given_by_name(name: str) -> None:
    assert len(library(name)) > 100
    if name == TASO:
        assert set(BUILT_IN) <= set(library(name).names)
    with pytest.raises(ValueError, match="one of"):
        library("theirs")
