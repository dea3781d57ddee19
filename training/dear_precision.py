"""Is learning worth it where each answer is a measurement? `python -m training.dear_precision --help`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, Resume, writable
from baselines.shared.tables import Results, rich
from training.precision import questions
from training.precision.answers import AnswerFile, MeasuredGraph
from training.precision.env import BUDGET
from training.precision.policy import PolicyRow
from training.precision.questions import Questions, Row, SpentError
from training.precision.regret import table_of
from training.precision.subjects import Subject
from training.precision.surrogates import (
    Answered,
    Boosting,
    GaussianProcess,
    WorldModel,
    by_surrogate,
    logs_of,
    of_sensitivities,
)
from training.progress import progress_bar

_STACK = 0.4  # progress of the curriculum: a few blocks
LEARNT: Mapping[str, Subject] = {
    "experts": Subject("train", 24, _STACK),
    "heads_loop": Subject("train", 58, _STACK),
    "gated_mlp_attention": Subject("train", 33, _STACK),
    "low_rank_attention": Subject("train", 6, _STACK),
    "residual": Subject("train", 42, _STACK),
    "reparametrised": Subject("train", 40, _STACK),
}
"""Graphs to learn from: 10 to 40 calls, so that an answer takes some milliseconds."""

HELD_OUT: Mapping[str, Subject] = {
    "recurrent_gated_state": Subject("test", 24, _STACK),
    "gated_experts": Subject("test", 28, _STACK),
    "interaction_linear_attention": Subject("test", 51, _STACK),
    "darts_ghost": Subject("test", 44, _STACK),
}
"""Graphs of families that are not among those."""

COUNTS = (10, 30, 100, 300)

_WITHOUT_CHANCE = {
    "by arithmetic": questions.by_arithmetic,
    "constant sensitivities": questions.constant,
    "sensitivities": questions.by_sensitivities,
}
_SEARCHES = {
    "random": questions.random_row,
    "local search": questions.local_search,
    "sensitivities, local search": questions.sensitivities_then_local_search,
    "sensitivities, refitted": by_surrogate(of_sensitivities),
    "Gaussian process": by_surrogate(GaussianProcess),
}


def main(
    answers: Annotated[
        Path, typer.Option(help="Table of what was measured; it is appended to.", callback=writable)
    ] = Path("dear_precision_answers.csv.gz"),
    replay: Annotated[
        bool, typer.Option("--replay", help="Measure nothing: an answer that is missing is an error.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each row that has chance in it.")] = 5,
    most: Annotated[int, typer.Option(min=3, help="Answers for each run, and for each learned graph.")] = 300,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two graphs to learn from, one to compare on.")
    ] = False,
    csv: CsvFile = None,
    resume: Resume = False,
) -> None:
    """Find the fastest assignment of types to calls within an error budget, with few measured errors.

    Each row gives calls of a graph one of the types float32, bfloat16 and int8, and gets the measured error.
    Rows are compared at equal numbers of answers, by the time of the fastest assignment within 1e-2 so far,
    which is a sum of measured times of kernels. Learned rows have as many answers for each of the graphs that
    they learn from. The table shows times relative to the best that any row has found for a graph.

    Example: python -m training.dear_precision --csv dear_precision.csv
    """
    torch.set_num_threads(1)
    file = AnswerFile(answers, replay)
    results = Results("dear_precision", csv, resume, dtype="float32", threads=1)
    learnt, held_out = list(LEARNT)[: 2 if quick else None], list(HELD_OUT)[: 1 if quick else None]
    with progress_bar() as bar:
        task = bar.add_task("learned graphs", total=len(learnt) + seeds * len(held_out) + seeds)
        graphs, answered = [], []
        for name in learnt:
            graphs.append(MeasuredGraph(name, LEARNT[name].source(), file))
            answered.append(_answered(graphs[-1], most))
            bar.advance(task)
        tried_on = [MeasuredGraph(name, HELD_OUT[name].source(), file) for name in held_out]
        for seed in range(seeds):
            bar.update(task, description=f"seed {seed}")
            rows = _rows(graphs, answered, most, seed)
            bar.advance(task)
            for graph in tried_on:
                done = set(results.frame.query("model == @graph.name and round == @seed").peer)
                for name, row in rows.items():
                    if name not in done:
                        _run(graph, name, row, seed, most, results)
                file.flush()
                results.save()
                bar.advance(task)
    terminal.console().print(rich("Time over that of the best known", table_of(results.frame)))


def _answered(graph: MeasuredGraph, most: int) -> Answered:
    """What learned rows are given of a graph: half of the answers are near good assignments."""
    ask, random = Questions(graph, most, BUDGET), np.random.default_rng(0)
    for each in questions.drawn(graph, random, most // 2):
        ask(each)
    _asked(questions.local_search, ask, random)
    return graph, np.asarray(list(ask.known), np.int8), logs_of(list(ask.known.values()))


def _asked(row: Row, ask: Questions, random: np.random.Generator) -> None:
    with contextlib.suppress(SpentError):
        row(ask, random)


def _rows(
    graphs: Sequence[MeasuredGraph], answered: Sequence[Answered], most: int, seed: int
) -> dict[str, Row]:
    """All rows of a seed; those without chance are of the first only."""
    found: dict[str, Row] = {**(_WITHOUT_CHANCE if seed == 0 else {}), **_SEARCHES}
    found["boosting"] = by_surrogate(functools.partial(Boosting, others=answered))
    found["PPO"] = PolicyRow(graphs, most, BUDGET, seed).row()
    found["world model"] = by_surrogate(WorldModel(answered, seed, False).on)
    found["world model, sensitivities"] = by_surrogate(WorldModel(answered, seed, True).on)
    return found


def _run(graph: MeasuredGraph, name: str, row: Row, seed: int, most: int, results: Results) -> None:
    ask = Questions(graph, most, BUDGET)
    _asked(row, ask, np.random.default_rng(seed))
    for count in COUNTS:
        if count <= most:
            results.add(graph.name, name, "time", ask.after(count), setting=f"answers={count}", round=seed)
    results.add(graph.name, name, "answers", len(ask.curve), round=seed)


if __name__ == "__main__":
    typer.run(main)
