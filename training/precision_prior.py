"""Does a learned prior replace measured sensitivities? `python -m training.precision_prior --help`."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, Resume
from baselines.shared.gap_closed import table_of
from baselines.shared.integer_programme import optimal_us
from baselines.shared.tables import Results, rich
from torchrlopt.executors.precision.retyped import CONTRACTIONS
from torchrlopt.precision.assignment import Assignment
from torchrlopt.precision.sensitivity import Sensitivities
from torchrlopt.precision.state import State
from torchrlopt.precision.tries import MARGIN, tried
from training.precision.graphs import DIRECTIONS, HELD_OUT, LEARNT, Lowered, Table, sensitivities_of, timed
from training.precision.priors import Array, Learned, Prior, by_operator, ridge
from training.progress import progress_bar

BUDGETS = (1e-3, 3e-3, 1e-2)
_SOLVER_S = 5.0  # of the integer programme, for each budget
_DRAWS = 3  # of what is random


def main(
    folder: Annotated[Path, typer.Option(help="Keeps what was measured and learned.")] = Path(
        "runs/precision"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Networks, each from other random weights.")] = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Of training, for each network.")] = 30,
    learnt: Annotated[str, typer.Option(help="Models to learn from, separated by commas.")] = ",".join(
        LEARNT
    ),
    held_out: Annotated[str, typer.Option(help="Models to compare on.")] = ",".join(HELD_OUT),
    csv: CsvFile = None,
    resume: Resume = False,
) -> None:
    """Compare ways to believe how much each rounding to bfloat16 matters, on families that were not learned.

    Each way gives sensitivities; the search of `max_error` chooses calls by them, and the chosen graph is
    run: a choice counts if its true error is within the budget, of at most three. Times are those of one
    model of costs. All but `measured` get the scale of their predictions from one run of everything in
    bfloat16. What is measured and learned is kept in the folder, so that a second run continues.

    Example: python -m training.precision_prior --csv precision_prior.csv
    """
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    named, tried_on = learnt.split(","), held_out.split(",")
    results = Results("precision_prior", csv, resume, batch=1, dtype="float32", threads=1)
    done = set(results.frame.model)
    with progress_bar() as bar:
        task = bar.add_task("graphs", total=len(named) + seeds + 1 + len(tried_on))
        tables = []
        for name in named:
            tables.append(_kept(folder / f"{name}.pickle", functools.partial(_table, name)))
            bar.advance(task)
        bar.update(task, description="networks")
        networks = []
        for seed in range(seeds):
            made = functools.partial(Learned, tables, seed, epochs)
            networks.append(_kept(folder / f"learned_{seed}_{epochs}.pickle", made))
            bar.advance(task)
        bar.update(task, description="held out")
        for name in tried_on:
            if name not in done:
                for row in compare(name, tables, networks):
                    results.add(name, **row)
                results.save()
            bar.advance(task)
    console = terminal.console()
    console.print(rich("By what is believed of the sensitivities", table_of(results.frame)))


def _kept(path: Path, make: Callable[[], Any]) -> Any:
    """What an earlier run has stored, or make and store it."""
    if not path.is_file():
        path.write_bytes(pickle.dumps(make()))
    return pickle.loads(path.read_bytes())


def _table(name: str) -> Table:
    this = Lowered(name)
    return this.table(this.measured(DIRECTIONS, seed=1))


def compare(name: str, tables: Sequence[Table], networks: Sequence[Learned]) -> list[dict[str, Any]]:
    """Rows of the long table for one model: each way, seed and budget."""
    this = Lowered(name)
    found: list[dict[str, Any]] = []
    shipped, seconds = timed(lambda: this.measured(2, seed=0))
    contest = _Contest(this, found)
    contest.add("measured", 0, seconds, shipped, is_scaled=False)
    for count, way in ((2, "measured, scaled"), (1, "measured, 1 direction"), (DIRECTIONS, "measured, 8")):
        other, seconds = timed(lambda count=count: this.measured(count, seed=2))
        contest.add(way, 0, seconds, other)
    table = this.table(this.measured(DIRECTIONS, seed=1))
    contest.all_or_nothing(shipped)
    work = {each.name: np.log(this.times.high[each.name]) for each in this.calls}
    priors: dict[str, Prior] = {
        "constant": lambda table: np.zeros(len(table.parts)),
        "operator": by_operator(tables),
        "flops": lambda table: np.asarray([work[name] for _, _, name in table.parts]),
        "ridge": ridge(tables),
    }
    for way, prior in priors.items():
        logs, seconds = timed(lambda prior=prior: prior(table))
        contest.add(way, 0, seconds, sensitivities_of(table.parts, logs), logs=logs, table=table)
    for seed in range(_DRAWS):
        random = np.random.default_rng(seed)
        drawn = random.permutation(table.logs)
        contest.add("shuffled", seed, 0.0, sensitivities_of(table.parts, drawn), logs=drawn, table=table)
        drawn = random.normal(0, 2, len(table.parts))
        contest.add("random", seed, 0.0, sensitivities_of(table.parts, drawn), logs=drawn, table=table)
    for seed, network in enumerate(networks):
        logs, seconds = timed(lambda network=network: network(table))
        contest.add("network", seed, seconds, sensitivities_of(table.parts, logs), logs=logs, table=table)
    return found


class _Contest:
    """Makes choices by sensitivities, and measures what they are worth.

    Args:
        this: the model.
        rows: of the long table, to which results are added.
    """

    def __init__(self, this: Lowered, rows: list[dict[str, Any]]) -> None:
        self._this, self._rows = this, rows

    def add(
        self,
        way: str,
        seed: int,
        seconds: float,
        believed: Sensitivities,
        is_scaled: bool = True,
        logs: Array | None = None,
        table: Table | None = None,
    ) -> None:
        """Choose by these sensitivities within each budget.

        Args:
            way: name of what made them.
            seed: of it.
            seconds: processor time that they took.
            believed: the sensitivities.
            is_scaled: whether one run of everything in bfloat16 scales them.
            logs: their logarithms, of the parts of the table.
            table: of the graph, with measured sensitivities.
        """
        assignment = Assignment(self._this.calls, believed, self._this.times)
        whole, none = assignment.of_all(), assignment.of_none().us
        scale = self._this.error(whole.lowered) / whole.error if is_scaled else 1.0
        for budget in BUDGETS:
            tries: list[float] = []

            def error_of(choice: Any, tries: list[float] = tries) -> float:
                tries.append(self._this.error(choice.lowered))
                return tries[-1]

            aim = MARGIN * budget / scale
            found = tried(assignment.within, error_of, budget, aim)
            share = found.choice.us / none if found.choice is not None else 1.0
            self._add(way, seed, budget, "time", share)
            self._add(way, seed, budget, "runs", len(tries) + is_scaled)
            if tries and not is_scaled:
                self._add(way, seed, budget, "true over predicted", tries[0] / assignment.within(aim).error)
            if way == "measured, 8":
                self._add(way, seed, budget, "first try", assignment.within(aim).us / none)
                self._add(
                    way, seed, budget, "integer programme", optimal_us(assignment, aim, _SOLVER_S) / none
                )
        self._add(way, seed, None, "seconds", seconds, "s")
        if logs is not None and table is not None and np.std(logs) > 0:
            self._add(way, seed, None, "correlation", float(np.corrcoef(logs, table.logs)[0, 1]))

    def all_or_nothing(self, found: Sensitivities) -> None:
        """Everything, or all contractions, or nothing; any sensitivities say who reads what."""
        assignment = Assignment(self._this.calls, found, self._this.times)
        whole, none = assignment.of_all(), assignment.of_none().us
        contractions = [each for each in assignment.items if each.target in CONTRACTIONS]
        low = frozenset(each.name for each in contractions)
        ways = {whole.lowered: whole.us, low: State(assignment.values, assignment.items, contractions).us}
        for budget in BUDGETS:
            shares = [us / none for names, us in ways.items() if self._this.error(names) <= budget]
            self._add("uniform", 0, budget, "time", min([1.0, *shares]))
            self._add("uniform", 0, budget, "runs", 2)

    def _add(
        self, way: str, seed: int, budget: float | None, metric: str, value: float, unit: str = ""
    ) -> None:
        setting = "" if budget is None else f"budget={budget:g}"
        self._rows.append(
            {"peer": way, "metric": metric, "value": value, "unit": unit, "setting": setting, "round": seed}
        )


if __name__ == "__main__":
    typer.run(main)
