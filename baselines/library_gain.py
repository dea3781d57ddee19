"""What the library brings on the suite, and what its generated part adds: plans, nothing is run or timed.

`python -m baselines.library_gain --help`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from baselines.graphs import graph_of
from baselines.models import NAMES
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, Models, choose, one, searchers
from torchrlopt import _C
from torchrlopt.errors import OptionsError, SubstitutionError
from torchrlopt.machine.cost import cost_model
from torchrlopt.options import Options
from torchrlopt.plan.search import Plan, search
from torchrlopt.substitutions import FIRES, foundation_text, hand_written_text, load_library

#: Without a limit of time that could cut a search short, a plan is the same on every machine.
BUDGET_MS = 600_000.0

COLUMNS = (
    "model", "before_ms", "hand_ms", "all_ms", "hand_gain", "all_gain", "fires_hand", "fires_generated",
    "generated_used", "base_gain", "alone_gain",
)  # fmt: skip


def main(
    models: Models = "all",
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    searcher: Annotated[str, typer.Option(help=f"What plans: {', '.join(searchers())}.")] = "greedy",
    csv: CsvFile = None,
    write_fires: Annotated[
        bool,
        typer.Option("--write-fires", help="Keep the counts for `substitutions list`; needs all models."),
    ] = False,
    alone: Annotated[
        Path | None,
        typer.Option(
            help="A folder that `torchrlopt substitutions generate --alone --out` filled; how far its "
            "substitutions replace what people wrote."
        ),
    ] = None,
) -> None:
    """Find which substitutions fire on the suite, and what the generated ones add: plans, no timing.

    Example: python -m baselines.library_gain --models nasrnn,bert_base --csv library.csv
    """
    searcher = one(searcher, searchers(), "searcher")
    chosen = choose(models, NAMES, "model")
    if write_fires and set(chosen) != set(NAMES):
        raise typer.BadParameter("--write-fires needs all models")
    console = terminal.console()

    def announce(gain: ModelGain) -> None:
        cells = gain.cells()
        console.print(f"{gain.model}: {cells['hand_gain']}x, {cells['all_gain']}x", highlight=False)

    gains = measure_library(chosen, batch, searcher, announce, alone)
    console.print(render(gains))
    for line in summary(gains):
        console.print(line, highlight=False, soft_wrap=True)
    if csv is not None:
        csv_files.write(csv, COLUMNS, [tuple(gain.cells().values()) for gain in gains])
    if write_fires:
        keep_fires(gains)


def is_generated(name: str) -> bool:
    """Whether the generator made a substitution: its names begin with gen_."""
    return name.startswith("gen_")


@dataclass
class ModelGain:
    """What the library predicts for one model, in milliseconds of the cost model.

    Attributes:
        fires: substitutions that match somewhere on the way of the plan and are not refused there.
        used: generated substitutions of the best plan, with how often.
        base_ms: without the families that the generator can express; None where that was not asked.
        alone_ms: with what the generator found in their place.
    """

    model: str
    before_ms: float
    hand_ms: float
    all_ms: float
    fires: set[str] = field(default_factory=set)
    used: dict[str, int] = field(default_factory=dict)
    base_ms: float | None = None
    alone_ms: float | None = None

    def cells(self) -> dict[str, str]:
        """By the names of COLUMNS."""
        generated = sum(is_generated(name) for name in self.fires)
        return {
            "model": self.model,
            "before_ms": f"{self.before_ms:.3f}",
            "hand_ms": f"{self.hand_ms:.3f}",
            "all_ms": f"{self.all_ms:.3f}",
            "hand_gain": f"{self.before_ms / self.hand_ms:.3f}",
            "all_gain": f"{self.before_ms / self.all_ms:.3f}",
            "fires_hand": str(len(self.fires) - generated),
            "fires_generated": str(generated),
            "generated_used": " ".join(f"{name}:{count}" for name, count in sorted(self.used.items())),
            "base_gain": "" if self.base_ms is None else f"{self.before_ms / self.base_ms:.3f}",
            "alone_gain": "" if self.alone_ms is None else f"{self.before_ms / self.alone_ms:.3f}",
        }


def firing(graph: _C.Graph, library: _C.Library, plan: Plan) -> set[str]:
    """Substitutions that can be applied to the graph or to any graph on the way of the plan."""
    found: set[str] = set()
    matches = _C.MatchSet(graph, library)
    for step in (*plan.steps, None):
        for match in matches.matches(library):
            name = match["name"]
            if name not in found and _applies(graph, library, name, match["location"]):
                found.add(name)
        if step is not None:
            graph = library.apply(graph, *step)
            matches = matches.after(graph, library)
    return found


def _applies(graph: _C.Graph, library: _C.Library, name: str, location: int) -> bool:
    try:
        library.apply(graph, name, location)
    except SubstitutionError:
        return False
    return True


def libraries_alone(folder: Path) -> tuple[_C.Library, _C.Library]:
    """What the generator started from with `--alone`, and that with what it found and wrote into a folder."""
    files = sorted(folder.glob("generated_*.txt"))
    if not files:
        raise OptionsError("no generated substitutions in the folder", where=str(folder))
    base = foundation_text()
    found = "".join(path.read_text(encoding="utf-8") for path in files)
    return _C.Library(base), _C.Library(base + found)


def gain_of(
    model: str,
    batch: int,
    searcher: str,
    hand: _C.Library,
    alone: tuple[_C.Library, _C.Library] | None = None,
) -> ModelGain:
    """Plans one model with the hand-written part and with all of the library, by the same search."""
    graph = graph_of(model, batch)
    options = Options.from_dict({"searcher": searcher, "budget_ms": BUDGET_MS})
    cost = cost_model("eager")
    library = load_library(with_generated=True)
    by_hand = search(graph, hand, cost, options)
    by_all = by_hand if hand.hash == library.hash else search(graph, library, cost, options)
    result = ModelGain(model, by_hand.cost_before_ms, by_hand.cost_after_ms, by_all.cost_after_ms)
    result.fires = firing(graph, library, by_all)
    if alone is not None:
        result.base_ms, result.alone_ms = (search(graph, each, cost, options).cost_after_ms for each in alone)
    for name, _ in by_all.steps:
        if is_generated(name):
            result.used[name] = result.used.get(name, 0) + 1
    return result


def measure_library(
    chosen: Sequence[str],
    batch: int,
    searcher: str,
    announce: Callable[[ModelGain], None],
    alone: Path | None = None,
) -> list[ModelGain]:
    """`gain_of` for some models of the suite, each announced when it is done."""
    hand = _C.Library(hand_written_text(), allow_assumed=False)
    without = None if alone is None else libraries_alone(alone)
    gains = []
    for model in chosen:
        gains.append(gain_of(model, batch, searcher, hand, without))
        announce(gains[-1])
    return gains


def render(gains: Sequence[ModelGain]) -> Table:
    """The table of a terminal."""
    table = Table(*COLUMNS, box=box.SIMPLE)
    for gain in gains:
        table.add_row(*gain.cells().values())
    return table


def summary(gains: Sequence[ModelGain]) -> list[str]:
    """The lines below the table."""
    library = load_library(with_generated=True)
    fires = set().union(*(gain.fires for gain in gains))
    generated = {name for name in fires if is_generated(name)}
    used = {name for gain in gains for name in gain.used}
    num_generated = sum(is_generated(name) for name in library.names)
    hand = geometric_mean([gain.before_ms / gain.hand_ms for gain in gains])
    both = geometric_mean([gain.before_ms / gain.all_ms for gain in gains])
    better = [gain.model for gain in gains if gain.all_ms < gain.hand_ms * (1 - 1e-9)]
    lines = [
        f"{len(fires)} of {len(library)} substitutions fire on at least one of {len(gains)} models: "
        f"{len(fires) - len(generated)} of {len(library) - num_generated} hand-written, "
        f"{len(generated)} of {num_generated} generated",
        f"predicted speed-up, geometric mean: {hand:.3f}x hand-written, {both:.3f}x with the generated ones",
        f"better with generated ones: {', '.join(better) or 'no model'}; "
        f"in the best plans: {', '.join(sorted(used)) or 'none'}",
    ]
    base = [gain.before_ms / gain.base_ms for gain in gains if gain.base_ms]
    alone = [gain.before_ms / gain.alone_ms for gain in gains if gain.alone_ms]
    if alone:
        lines.append(
            "without what people wrote about algebra, convolutions, merging and movement: "
            f"{geometric_mean(base):.3f}x; with what the generator found in its place: "
            f"{geometric_mean(alone):.3f}x"
        )
    return lines


def keep_fires(gains: Sequence[ModelGain]) -> None:
    """Keeps which substitution fires on which model, for `torchrlopt substitutions list`."""
    names = sorted(set().union(*(gain.fires for gain in gains)))
    found = {name: [gain.model for gain in gains if name in gain.fires] for name in names}
    FIRES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
