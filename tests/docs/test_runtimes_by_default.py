"""What pages say of runtimes that default options take: bounds of the code, and means that were measured."""

from __future__ import annotations

from baselines.table import markdown
from tests.docs.pages import ROOT, prose
from torchrlopt import executor_table
from torchrlopt.compile.choice import ENOUGH
from torchrlopt.plan.foreseen import RUNTIMES

HELD_OUT = ROOT / "baselines" / "results" / "cpu_batch1_float32_xeon_held_out.csv"


def told(page: str) -> str:
    return " ".join(prose(ROOT / page).split())


def test_bounds() -> None:
    by_name = {row.name: row.clearly_below for row in executor_table.ROWS if row.name in RUNTIMES}
    bounds = " or ".join(f"{bound:g} (`{name}`)" for name, bound in by_name.items())
    numbers = " and ".join(f"{bound:g}" for bound in by_name.values())
    assert f"at most {bounds} times that in `eager`" in told("docs/executors.md")
    assert f"bounds ({numbers} of" in told("docs/measuring.md")
    assert f"at least {ENOUGH:g} times as fast as the original" in told("docs/executors.md")
    assert f"it is {ENOUGH:g} times as fast as the original or more" in told("README.md")


def test_means_on_the_models_that_nothing_was_chosen_on() -> None:
    rows = [[cell.strip(" *") for cell in line.split("|")] for line in markdown(HELD_OUT).splitlines()]
    mean = dict(zip(rows[0], rows[-1], strict=True))
    eager, default = mean["torchrlopt/eager"], mean["torchrlopt/default"]
    assert f"are at {eager} of eager PyTorch without a runtime and at {default} where" in told("README.md")
    assert f"are at {default} over eager PyTorch, {eager} in `eager`" in told("docs/measuring.md")
