"""Times torchrlopt against its peers on the suite: `python baselines/compare.py --help`."""

from __future__ import annotations

import difflib
import functools
import itertools
import os
import sys
import tempfile
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if __package__ in (None, ""):
    # Run as a file: python has put baselines/ on the path, and the package's parent is what is needed.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from baselines.measure import Row, Settings, measure_model
from baselines.peers import DTYPES, OURS, PEERS, Case, installed_peers
from baselines.table import failures, machine, render, write_csv, write_plot
from torchrlopt.executor_table import choices as executor_choices
from torchrlopt.options import Weights
from torchrlopt.searcher_table import names as searcher_names

#: Characters that the table needs, for output that has no width of its own.
_PLAIN_WIDTH = 200


def choose(text: str, known: Sequence[str], what: str, usual: Sequence[str] | None = None) -> list[str]:
    """Splits a comma-separated list, `all` for everything, in the order given and without repeats.

    Args:
        text: what the user wrote.
        known: every valid name.
        what: what the names are of, for messages.
        usual: what `all` stands for, if not all that is known.

    Raises:
        typer.BadParameter: A name is not known; the message names the nearest.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return list(known if usual is None else usual)
    if not names:
        raise typer.BadParameter(f"no {what} given; choose from: {', '.join(known)}")
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose from: {', '.join(known)}"
            raise typer.BadParameter(f"no {what} named {name!r}; {hint}")
    return list(dict.fromkeys(names))


def _summary(rows: Sequence[Row]) -> str:
    """One line on one model."""
    parts = []
    for row in rows:
        if row.reason:
            parts.append(f"{row.case.label} failed")
        elif row.case.peer == PEERS[0]:
            parts.append(f"{PEERS[0]} {row.median_ms:.1f} ms")
        else:
            kept = f" ({row.kept})" if row.kept else ""
            parts.append(f"{row.case.label} " + ("-" if row.ratio is None else f"{row.ratio:.2f}x") + kept)
    return f"{rows[0].case.model}: {', '.join(parts)}"


def _compare_library(
    console: Console,
    chosen: Sequence[str],
    batch: int,
    searcher: str,
    csv: Path | None,
    keeps_fires: bool,
    alone: Path | None,
) -> None:
    """Plans of the suite with and without the generated substitutions."""
    from baselines import library_gain  # imports torch

    def announce(gain: library_gain.ModelGain) -> None:
        cells = gain.cells()
        console.print(f"{gain.model}: {cells['hand_gain']}x, {cells['all_gain']}x", highlight=False)

    gains = library_gain.measure_library(chosen, batch, searcher, announce, alone)
    console.print(library_gain.render(gains))
    for line in library_gain.summary(gains):
        console.print(line, highlight=False, soft_wrap=True)
    if csv is not None:
        library_gain.write_csv(gains, csv)
    if keeps_fires:
        if chosen != list(_suite()):
            raise typer.BadParameter("--write-fires needs all models")
        library_gain.write_fires(gains)


def _values(literal: object) -> tuple[str, ...]:
    return typing.get_args(literal)


def _suite() -> Sequence[str]:
    from baselines.models import NAMES  # imports torch

    return NAMES


def compare(
    models: Annotated[str, typer.Option(help="Models of the suite, separated by commas, or 'all'.")] = "all",
    peers: Annotated[
        str,
        typer.Option(help=f"Peers, separated by commas, or 'all' that are installed: {', '.join(PEERS)}."),
    ] = "all",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each peer, in turn.")] = 7,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    dtype: Annotated[str, typer.Option(help=f"Type of weights and inputs: {', '.join(DTYPES)}.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Threads of each peer.")] = 2,
    executor: Annotated[
        str, typer.Option(help="torchrlopt's executors, separated by commas; 'auto' times all of them.")
    ] = "eager",
    searcher: Annotated[
        str,
        typer.Option(
            help="torchrlopt's searchers, separated by commas, 'none' for the executor without a plan; empty "
            "for agent, with --library for greedy."
        ),
    ] = "",
    weights: Annotated[
        str, typer.Option(help=f"torchrlopt's option of that name: {', '.join(_values(Weights))}.")
    ] = "check",
    csv: Annotated[Path | None, typer.Option(help="CSV file to write, anew after each model.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot to draw: .png, .svg or .pdf.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one compilation may take.")] = 600.0,
    search: Annotated[
        bool, typer.Option("--search", help="Predicted cost of every searcher against steps and seconds.")
    ] = False,
    primitives_only: Annotated[
        bool, typer.Option(help="With --search and --agent: without the library's composites.")
    ] = False,
    search_s: Annotated[float, typer.Option(min=0.01, help="With --search: seconds of one search.")] = 20.0,
    best_known_s: Annotated[
        float, typer.Option(min=0.01, help="With --search and --agent: seconds of best_known for each model.")
    ] = 60.0,
    agent: Annotated[
        bool,
        typer.Option("--agent", help="Predicted cost of agents and searchers at equal time and steps."),
    ] = False,
    seconds: Annotated[
        str, typer.Option(help="With --agent: wall times, separated by commas.")
    ] = "0.1,0.3,1,10",
    seeds: Annotated[int, typer.Option(min=1, help="With --agent: runs of what depends on a seed.")] = 5,
    env: Annotated[
        bool, typer.Option("--env", help="Times of the environment's steps and first match.")
    ] = False,
    fidelity: Annotated[
        bool, typer.Option("--fidelity", help="Estimated against measured time after random substitutions.")
    ] = False,
    variants: Annotated[int, typer.Option(min=1, help="With --fidelity: variants of each model.")] = 20,
    profile_s: Annotated[
        float, typer.Option(min=1, help="With --fidelity: seconds for the profile of each model.")
    ] = 40.0,
    library: Annotated[
        bool,
        typer.Option(
            "--library", help="Which substitutions fire, and what generated ones add: plans, no timing."
        ),
    ] = False,
    write_fires: Annotated[
        bool, typer.Option("--write-fires", help="With --library: keep the counts for `substitutions list`.")
    ] = False,
    alone: Annotated[
        Path | None,
        typer.Option(
            help="With --library: a folder that `torchrlopt substitutions generate --alone --out` filled; "
            "how far its substitutions replace what people wrote."
        ),
    ] = None,
) -> None:
    """Time torchrlopt and its peers on the suite, each model and peer in a process of its own.

    Eager always runs. Peers compile one after the other, then take turns, round by round. The speed-up is the
    median of the rounds' ratios to eager PyTorch. The first call counts compilation, from caches that do not
    know the model, but not imports. Errors are against float64; a result that is further from it
    than eager's own rounding explains is reported as wrong and does not count. "kept" is the executor whose
    graph was the fastest, with its searcher where that is not the agent, or the original.

    One model takes about a minute, most of it inductor's compilations; all of them less than 40 minutes.
    """
    if dtype not in DTYPES:
        raise typer.BadParameter(f"no dtype named {dtype!r}; choose from: {', '.join(DTYPES)}")
    if weights not in _values(Weights):
        raise typer.BadParameter(f"no weights {weights!r}; choose from: {', '.join(_values(Weights))}")
    chosen_peers = choose(peers, PEERS, "peer", installed_peers())
    chosen_peers = [PEERS[0], *(peer for peer in chosen_peers if peer != PEERS[0])]
    executors = choose(executor, executor_choices(), "executor")
    searchers = choose(searcher or "agent", searcher_names(), "searcher")
    for path in (csv, plot):
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"no folder {str(path.parent)!r} to write {path.name!r} into")
    from baselines.models import NAMES  # imports torch: not before the arguments are known to be good

    chosen_models = choose(models, NAMES, "model")
    if len(executors) > 1 and (search or agent or env or fidelity):
        raise typer.BadParameter("--search, --agent, --env and --fidelity are for one executor at a time")
    if search:
        from baselines import search_gap

        searches = search_gap.Settings(
            executor, primitives_only, seconds=search_s, best_known_seconds=best_known_s
        )
        search_gap.run(chosen_models, searches, csv, plot)
        return
    if agent:
        from baselines import agent_gap
        from baselines.graphs import graph_of

        wall_times = tuple(sorted(agent_gap.numbers(seconds)))
        duel = agent_gap.Settings(executor, primitives_only, wall_times, best_known_s, seeds)
        graphs = {model: functools.partial(graph_of, model) for model in chosen_models}
        agent_gap.run(graphs, duel, csv, plot)
        return
    if env:
        from baselines import env_speed

        env_speed.run(chosen_models, executor, csv)
        return
    if fidelity:
        from baselines import fidelity as estimates

        estimates.run(chosen_models, estimates.Settings(executor, variants, profile_s, threads), csv, plot)
        return
    settings = Settings(rounds=rounds, timeout_s=timeout)
    console = Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)
    if library:
        _compare_library(console, chosen_models, batch, searcher or "greedy", csv, write_fires, alone)
        return
    console.print(f"{machine()}; batch {batch}, {dtype}, {threads} threads", highlight=False)
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"The machine is busy (load {load:.1f}): expect wide quartiles.", style="yellow")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    settings_of_cases: list[tuple[Any, ...]] = [
        (peer, batch, dtype, threads, *own)
        for peer in chosen_peers
        for own in (itertools.product(executors, searchers, [weights]) if peer == OURS else [()])
    ]
    rows: list[Row] = []
    bar = Progress(*columns, console=console, transient=True)
    with tempfile.TemporaryDirectory() as caches, bar as progress:
        task = progress.add_task("starting", total=len(chosen_models) * (len(settings_of_cases) + rounds))
        for model in chosen_models:
            cases = [Case(model, *each) for each in settings_of_cases]
            done = progress.tasks[task].completed

            def announce(phase: str) -> None:
                progress.update(task, description=phase, advance=1)

            model_rows = measure_model(cases, settings, Path(caches), announce)
            # A step is announced when it begins, so the count is set right at the end.
            progress.update(task, completed=done + len(settings_of_cases) + rounds)
            progress.console.print(_summary(model_rows), highlight=False, soft_wrap=True)
            rows += model_rows
            if csv is not None:
                write_csv(rows, csv)
    console.print(render(rows))
    for line in failures(rows):
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    if plot is not None:
        write_plot(rows, plot)
    if all(row.reason for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(compare)
