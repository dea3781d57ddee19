"""Whether further substitutions are worthwhile: training/papers/plan_space.py."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from torchrlopt import _C
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.proof.layers import Effort as Checking
from torchrlopt.substitutions.proof.layers import check_one
from torchrlopt.substitutions.proof.records import read_record, text_hash
from training.device.prices import cost_of, typical_prices
from training.papers.plan_space import (
    COLUMNS,
    DECISIONS,
    LEAST_GAIN,
    NOTHING,
    admitted,
    ask,
    blocks,
    by_family,
    gains,
    main,
)

COST = cost_of(typical_prices("eager"))
APP = typer.Typer(add_completion=False)
APP.command()(main)
TWO_PRODUCTS = _C.parse_graph(
    "graph (x: f32[8,256], %a: f32[256,256], %b: f32[256,256]) {\n"
    "  p = MatMul(x, %a)\n  q = MatMul(x, %b)\n  y = Relu(p)\n  z = Tanh(q)\n  return y, z\n}"
)
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in DECISIONS.glob("*.txt")}


def asked(graph: _C.Graph, base: str, decision: str) -> pd.Series:
    """What was found for a decision, with its gain."""
    libraries = {NOTHING: _C.Library(base), "further": _C.Library(f"{base}# family: further\n{decision}")}
    rows = [("eager", each[0], "some", "graph", *each[1:]) for each in ask(graph, libraries, COST, 50, 1)]
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    found["gain"] = gains(found)
    assert list(found["decision"]) == [NOTHING, "further"]
    assert found["gain"][0] == 0
    last = found.iloc[1]
    assert last["best_us"] <= last["chains_us"] <= last["first_us"]
    return last


def own(library: _C.Library, *names: str) -> str:
    return "".join(f"# family: {library.family(name)}\n{library.text(name)}\n" for name in names)


def test_a_decision_that_pays_is_found_to_pay() -> None:
    """Where the library has no merges, those of two siblings save what they save."""
    two = _C.Library(TEXTS["subsets"]).text("merge_two_matmuls")
    library = load_library()
    found = asked(TWO_PRODUCTS, own(library, "remove_transpose"), two)
    assert found.steps == 1
    assert found.gain >= LEAST_GAIN
    assert found.with_us < found.best_us == found.chains_us == found.first_us
    assert asked(TWO_PRODUCTS, own(library, *library.names), two).gain < LEAST_GAIN, (
        "it merges all siblings already"
    )


def test_a_decision_that_pays_only_after_other_steps_is_found_to_pay() -> None:
    base = own(load_library(), "remove_double_neg")
    odd = "substitution odd\n  y = Tanh(x)\n=>\n  a = Neg(x)\n  b = Tanh(a)\n  y = Neg(b)\n"
    graph = _C.parse_graph(
        "graph (x: f32[512,512]) {\n  a = Neg(x)\n  b = Tanh(a)\n  y = Neg(b)\n  return y\n}"
    )
    found = asked(graph, base, odd)
    assert found.steps == 1
    assert found.gain >= LEAST_GAIN, "its own step makes the graph dearer"


def test_a_decision_that_is_never_used_wins_nothing() -> None:
    two = _C.Library(TEXTS["subsets"]).text("merge_two_matmuls")
    found = asked(TWO_PRODUCTS, own(load_library(), "remove_transpose"), two.replace("== 2", "== 7"))
    assert found.steps == 0
    assert math.isnan(found.with_us)
    assert found.gain == 0


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_decisions_are_proved_or_tested_and_no_part_of_the_library(name: str) -> None:
    text = TEXTS[name]
    library = _C.Library(text)
    assert {library.family(each) for each in library.names} == {name}
    assert not set(library.names) & set(load_library().names)
    for each in library.names:
        record = read_record(library, each)
        assert record is not None
        assert record.method in ("z3", "evaluation")
        assert record.hash == text_hash(library, each), "proved is another text"
        assert check_one(text, (each,), Checking(bindings=10, instances=0)).is_sound


def admits(*saved: float) -> bool:
    rows = [
        ("eager", "d", "f", f"g{i}", 100.0, 60.0, 50.0, 50.0 * (1 - each), 1) for i, each in enumerate(saved)
    ]
    return admitted(by_family(pd.DataFrame(rows, columns=list(COLUMNS)))) == ["f"]


def test_a_fifth_of_the_graphs_admits() -> None:
    assert not admits(0.03, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert admits(0.03, 0.0, 0.0, 0.0, 0.0)
    assert not admits(*[0.019] * 5)
    assert gains(pd.DataFrame({"best_us": [50.0, 50.0], "with_us": [50.5, 50.0 - 1e-13]})).tolist() == [0, 0]


def test_graphs_differ_are_the_same_each_time_and_count_for_each_of_their_families() -> None:
    wanted = ["gated_mlp", "relations", "separable_cell"]
    given = list(blocks(wanted, 3))
    assert len({graph.text() for _, _, graph in given}) == len(given)
    of_each = [family for families, _, _ in given for family in families.split()]
    assert set(of_each) == set(wanted)
    assert all(of_each.count(family) >= 3 for family in wanted)
    assert [graph.text() for *_, graph in given] == [g.text() for *_, g in blocks(wanted, 3)]


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "found.csv"
    given = ["--families", "gated_mlp", "--models", "toy_bert", "--graphs", "1", "--expansions", "20"]
    given += ["--executors", "eager,onnxruntime", "--seeds", "1", "--csv", str(path)]
    told = CliRunner().invoke(APP, given)
    assert told.exit_code == 0, told.output
    assert "of no family" in " ".join(told.output.split())
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    assert tuple(rows[0]) == COLUMNS
    per_graph = 2 * (1 + len(TEXTS))
    assert len(rows) == 2 * per_graph
    assert [row["families"] for row in rows[-per_graph:]] == ["models"] * per_graph
    CliRunner().invoke(APP, given)
    again = list(csv.DictReader(path.open(encoding="utf-8")))
    assert again == rows, "a search ends by its number of expansions"
    assert CliRunner().invoke(APP, ["--families", "gated_mpl"]).exit_code == 2
