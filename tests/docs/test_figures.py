"""Numbers in the pages are those of the library and of the raw measurements, and each has its command."""

from __future__ import annotations

import csv
import re
import statistics
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

import torchrlopt
from baselines import fidelity, first_call, overhead, search_gap
from baselines.models import NAMES as MODELS
from baselines.search_gap import Point
from baselines.shared import agent_tables, csv_files
from tests.docs.pages import PAGES, ROOT, name_of, prose, section_of, sections
from torchrlopt import _C
from torchrlopt.api.cli.app import app
from torchrlopt.substitutions import fires, load_library
from torchrlopt.substitutions.proof.records import axioms_hash, origin_of, state_of, texts_of
from training.compare_held_out import kinds_of

README, MEASURING, AGENT = (ROOT / path for path in ("README.md", "docs/measuring.md", "docs/agent.md"))
RESULTS = ROOT / "baselines" / "results"
LIBRARY = load_library(with_generated=True, allow_assumed=True)
STATES = {name: state_of(LIBRARY, name, axioms_hash()) for name in LIBRARY.names}
TESTED = [name for name in LIBRARY.names if STATES[name] != "proved"]


def _count(states: Mapping[str, str], state: str) -> int:
    return sum(each == state for each in states.values())


#: Sentences about the library, and what has to stand in their place of the number.
FACTS: dict[str, int] = {
    r"(\d[\d,]*) substitutions\b": len(LIBRARY.names),
    r"[Pp]eople wrote (\d[\d,]*)": sum(origin_of(name) == "hand" for name in LIBRARY.names),
    r"(\d[\d,]*) generated substitutions": sum(origin_of(name) == "generated" for name in LIBRARY.names),
    r"(\d[\d,]*) are proved": _count(STATES, "proved"),
    r"(\d[\d,]*) are tested only": _count(STATES, "tested"),
    r"library has (\d[\d,]*) texts": len(texts_of(LIBRARY)),
    r"(\d[\d,]*) tested texts": sum(members[0] in TESTED for members in texts_of(LIBRARY).values()),
    r"(\d[\d,]*) of \d[\d,]* substitutions fire": sum(bool(models) for models in fires().values()),
    r"at least one model, (\d[\d,]*) of them generated": sum(
        bool(models) and origin_of(name) == "generated" for name, models in fires().items()
    ),
    r"(\d[\d,]*) ONNX operators": sum(bool(op["is_typed"]) for op in _C.ops()),
    r"(?:of|the|same) (\d[\d,]*) models": len(MODELS),
}


def wrong_facts(text: str) -> list[str]:
    """Sentences with another number than the library has."""
    found = [(match, n) for pattern, n in FACTS.items() for match in re.finditer(pattern, text)]
    return [f"{match[0]!r}: expected {n}" for match, n in found if int(match[1].replace(",", "")) != n]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_counts_are_the_librarys(page: Path) -> None:
    assert wrong_facts(prose(page)) == []


def test_a_wrong_count_is_seen() -> None:
    assert wrong_facts("the library of 12 substitutions") == [
        f"'12 substitutions': expected {len(LIBRARY.names)}"
    ]


def test_every_count_is_stated() -> None:
    """A pattern that is in no page checks nothing."""
    everything = " ".join(prose(page) for page in PAGES)
    assert [pattern for pattern in FACTS if not re.search(pattern, everything)] == []


def test_nothing_says_that_all_is_proved() -> None:
    assert TESTED, "all are proved: the pages may say so, and this test goes"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = {name_of(page): page.read_text(encoding="utf-8") for page in PAGES}
    texts["pyproject.toml"] = project["description"]
    texts["torchrlopt --help"] = CliRunner().invoke(app, ["--help"]).stdout
    texts["torchrlopt"] = torchrlopt.__doc__ or ""
    for place, text in texts.items():
        assert not re.search(r"\b(proven|proved) substitutions", text), place


def _is_figure(cell: str) -> bool:
    return re.search(r"\d\.\d", cell) is not None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_table_of_figures_has_its_command(page: Path) -> None:
    for section in sections(page):
        for table in section.tables:
            if sum(_is_figure(cell) for row in table[1:] for cell in row) >= 3:
                assert any(block.language == "sh" for block in section.blocks), (
                    f"{name_of(page)}, {section.heading!r}: which command makes the table of {table[0]}?"
                )


# ---- calls


def test_what_calls_cost() -> None:
    ways = {
        '`optimise`, `weights="check"`': "check",
        '`optimise`, `weights="frozen"`': "frozen",
        '`torch.compile(backend="rlopt")`, `check`': "compile_check",
        '`torch.compile(backend="rlopt")`, `frozen`': "compile_frozen",
        '`torch.compile(backend="aot_eager")`': "aot_eager",
        "the model itself": "eager",
    }
    section = section_of(MEASURING, "Calls")
    (header, *rows), (_, *of_models), *_ = section.tables
    lines = csv_files.read(RESULTS / "overhead.csv", overhead.CSV_COLUMNS)
    for name, *cells in rows:
        for heading, cell in zip(header[1:], cells, strict=True):
            weights = heading.removesuffix(" weights").replace(",", "")
            (line,) = (each for each in lines if (each["weights"], each["way"]) == (weights, ways[name]))
            beyond = f", {float(line['beyond_min_us']):.0f} beyond" if line["beyond_min_us"] else ""
            assert cell == f"{float(line['call_min_us']):.0f}{beyond}", (name, heading)
    above = [
        100 * (float(line["call_median_us"]) / float(line["call_min_us"]) - 1)
        for line in lines
        if line["weights"] == "1000"
    ]
    told = f"The medians of 1,000 weights are {min(above):.0f} to {max(above):.0f} % above the least"
    assert told in prose(MEASURING)
    models = csv_files.read(RESULTS / "overhead_models.csv", overhead.CSV_COLUMNS)
    pairs = list(zip(models[::2], models[1::2], strict=True))
    for (check, frozen), cells in zip(pairs, of_models, strict=True):
        assert (check["way"], frozen["way"]) == overhead.MODEL_WAYS
        call = min(float(each["call_min_us"]) for each in (check, frozen))
        more = float(check["beyond_median_us"]) - float(frozen["beyond_median_us"])
        beyond = [
            f"{float(each['beyond_min_us']):.0f}, median {float(each['beyond_median_us']):.0f}"
            for each in (check, frozen)
        ]
        assert cells == [
            *(f"`{check['executor']}`", check["model"], check["weights"]),
            f"{call:.0f}",
            *beyond,
            f"{100 * more / call:.2f} %",
        ]


def test_first_calls() -> None:
    """Medians of processor seconds and of MB, from the raw numbers."""
    found = first_call.read_csv(RESULTS / "first_call.csv")
    (_, *rows), *_ = section_of(MEASURING, "First calls").tables
    ways = list(dict.fromkeys((each.model, each.way) for each in found))
    assert [(model, way.strip("`")) for model, way, *_ in rows] == ways
    for (model, way), (_, _, *cells) in zip(ways, rows, strict=True):
        mine = [each for each in found if (each.model, each.way) == (model, way)]
        more = [cpu_s for _, cpu_s in first_call.beyond(found, model, way)]
        assert cells == [
            f"{statistics.median(each.cpu_s for each in mine):.1f}",
            f"{statistics.median(more):.1f}" if way in first_call.OPTIONS else "",
            f"{statistics.median(each.peak_mb for each in mine):.0f}",
            f"{statistics.median(each.calls_peak_mb or 0 for each in mine):.0f}",
        ], (model, way)


# ---- prices and plans


def test_how_true_the_prices_are() -> None:
    (_, *rows), *_ = section_of(MEASURING, "How true the prices are").tables
    for executor, *cells in rows:
        name = executor.split("`")[1]
        found = fidelity.fidelity(fidelity.read_csv(RESULTS / f"fidelity_{name}.csv"))
        assert cells == [
            f"{100 * found.median_error:.1f} %",
            f"{100 * found.p90_error:.1f} %",
            f"{found.spearman:.3f}",
            f"{found.kendall:.2f}",
        ], name


def _points(name: str) -> list[Point]:
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [
            Point(
                row["model"],
                row["searcher"],
                int(row["seed"]),
                int(row["steps"]),
                float(row["seconds"]),
                float(row["cost_ms"]),
            )
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("name", ["search_full", "search_primitives_only"])
def test_what_planning_can_win(name: str) -> None:
    text = " ".join(section_of(MEASURING, "What planning can win").lines)
    gaps = search_gap.gaps(_points(name))
    left = {model: row["greedy"] for model, row in gaps.items() if row["greedy"] > search_gap.CLOSE}
    assert f"{len(gaps) - len(left)} of {len(gaps)} models" in " ".join(text.split())
    for model, gap in left.items():
        told = re.findall(rf"{model} \(([\d.]+) %\)", text)
        assert any(abs(float(each) - 100 * gap) <= (0.05 if "." in each else 0.5) for each in told), model


# ---- agents


def _agents(name: str, kinds: Mapping[str, agent_tables.Kind] | None = None) -> dict[str, list[str]]:
    """The rows of a table of rivals at 0.3 s, by their first cells."""
    found = agent_tables.gaps(agent_tables.read_csv(RESULTS / f"{name}.csv"))
    rows = {}
    for rival, pair in agent_tables.against(found, "0.3 s", kinds).items():
        gap = found["0.3 s", rival]
        rows[rival] = [
            f"{100 * gap.mean:.2f}",
            f"{pair.ratio:.4f}",
            f"{pair.low:.4f} to {pair.high:.4f}",
            f"{pair.better}, {pair.worse}",
            f"{pair.p:.2g}",
            f"{gap.steps:.0f}",
            f"{gap.seconds:.3f}",
        ]
    own = found["0.3 s", "agent"]
    rows["agent"] = [f"{100 * own.mean:.2f}", "", "", "", "", f"{own.steps:.0f}", f"{own.seconds:.3f}"]
    return rows


def test_the_agent_against_its_rivals() -> None:
    (_, *test), (header, *families) = section_of(AGENT, "On families that nothing was chosen by").tables
    (_, *suite), *_ = section_of(AGENT, "On the suite").tables
    kinds = kinds_of("test", 40, 1)
    assert {rival: cells for rival, *cells in test} == _agents("agent_test", kinds)
    assert {rival: cells for rival, *cells in suite} == _agents("agent_suite")
    found = agent_tables.gaps(agent_tables.read_csv(RESULTS / "agent_test.csv"))
    graphs = agent_tables.families_of(kinds)
    assert [family.strip("`") for family, *_ in families] == list(graphs)
    for family, count, *cells in families:
        mine = graphs[family.strip("`")]
        means = [agent_tables.mean_of(found["0.3 s", name].by_model, mine) for name in header[2:]]
        assert [count, *cells] == [str(len(mine)), *(f"{100 * mean:.2f}" for mean in means)]


def test_what_the_world_models_foretell() -> None:
    card = (ROOT / "torchrlopt" / "agent" / "shipped" / "CARD.md").read_text(encoding="utf-8")
    (_, *rows), *_ = section_of(AGENT, "What the world models are worth").tables
    for row, graphs, *cells in rows:
        kind = graphs.replace(" of known", ", known")
        pattern = rf"^\| {row.strip('`')} \| {kind} \|(.*)\|$"
        found = re.search(pattern, card, re.MULTILINE)
        assert found, (row, kind)
        assert [f"{float(cell):.3f}" for cell in found[1].split("|")] == cells
