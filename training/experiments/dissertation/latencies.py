"""Figure 4.1 and table 4.2 of the dissertation: measured latencies, and memory, of optimised graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from training.experiments.dissertation.libraries import OURS, TASO, TITLES
from training.experiments.dissertation.measured_run import (
    AS_WRITTEN,
    UNOPTIMISED,
    Form,
    Measured,
    MeasuredRun,
    Times,
)
from training.experiments.dissertation.peers import peers_of, report_peers
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.graphs_of_paper import GRAPHS, graphs_at
from training.experiments.intervals import median_interval
from training.experiments.runs import EXECUTORS, Scale, Workplace

STEPS = 5_000  # of a search; figure 4.2 says what more would find
_CALLS = 60
_LEAST_CALLS = 9
GREEDY, TASOS, TASO_RULES = (
    Form(f"greedy, {TITLES[OURS]}", "greedy", OURS, STEPS),
    Form(f"TASO's search, {TITLES[OURS]}", "taso", OURS, STEPS),
    Form(f"TASO's search, {TITLES[TASO]}", "taso", TASO, STEPS),
)
FORMS = (Form(UNOPTIMISED), GREEDY, TASOS, TASO_RULES)
#: Milliseconds and GiB of the graph in TensorFlow, and what the model-based agent saved of both.
THEIR_MEMORY = {
    "resnet18": (12.2, 1.18, 0.030, 0.011),
    "resnet50": (26.7, 2.34, 0.010, 0.006),
    "inception_v3": (17.6, 2.11, 0.125, 0.023),
    "squeezenet1_1": (4.6, 1.14, 0.189, 0.018),
    "toy_bert": (4.1, 0.26, 0.541, 0.045),
}
Found = Mapping[tuple[str, str], Measured]


def runs_of(scale: Scale, place: Workplace) -> dict[tuple[str, str], MeasuredRun]:
    """By graph and executor."""
    return {
        (name, executor): MeasuredRun(
            name, executor, (Form(AS_WRITTEN), *FORMS) if executor == "eager" else FORMS, _calls(scale)
        )
        for name in graphs_at(scale.share)
        for executor in EXECUTORS
    }


def _calls(scale: Scale) -> int:
    """Timed calls of each form."""
    return max(_LEAST_CALLS, round(_CALLS * min(1.0, scale.share)))


def ratios(times: Times, base: Times) -> tuple[float, float, float]:
    """How many times as fast as another form, turn by turn: the median and its interval."""
    return median_interval([b / own for own, b in zip(times.cpu_ms, base.cpu_ms, strict=True)])


def report_latencies(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    found = {key: results.finished.outcome(run) for key, run in runs_of(results.scale, results.place).items()}
    rows = [
        (
            name, executor, each.title, each.metrics["time_us"] / 1e3,
            *(float(of(values)) if values else "" for values in (each.cpu_ms, each.wall_ms)
              for of in (np.min, np.median)),
            len(each.cpu_ms), each.num_steps, each.reason,
        )
        for (name, executor), measured in found.items()
        for each in measured.forms
    ]  # fmt: skip
    header = (
        "graph", "executor", "form", "predicted_ms", "cpu_least_ms", "cpu_median_ms", "wall_least_ms",
        "wall_median_ms", "calls", "steps", "reason",
    )  # fmt: skip
    write_csv(folder / "fig4.1.csv", header, rows)
    _plot(found, folder / "fig4.1.png")
    lines = []
    for executor in EXECUTORS:
        tables = [_line(name, measured) for (name, own), measured in found.items() if own == executor]
        lines += [f"### {executor}", "", *table(("graph", "unoptimised ms", *_columns()), tables), ""]
    return [
        "![measured latencies](fig4.1.png)",
        "",
        f"Times as fast as {UNOPTIMISED}, measured with one thread: median over "
        f"{_calls(results.scale)} calls in turns, with its interval of 95 %; processor time of "
        "the process. In brackets what the prices foretold.",
        "",
        *lines,
        *_words(found),
        "",
        *report_peers(results, folder),
    ]


def _columns() -> list[str]:
    return [form.title for form in FORMS[1:]]


def _line(name: str, measured: Measured) -> list[Cell]:
    base = measured.times(UNOPTIMISED)
    cells: list[Cell] = [GRAPHS[name].title, float(np.median(base.cpu_ms)) if base.cpu_ms else base.reason]
    for form in FORMS[1:]:
        own = measured.times(form.title)
        if not own.cpu_ms or not base.cpu_ms:
            cells.append(own.reason)
            continue
        median, low, high = ratios(own, base)
        foretold = base.metrics["time_us"] / own.metrics["time_us"]
        same = own.graph_hash == base.graph_hash
        cells.append("the same graph" if same else f"{median:.2f} ({low:.2f} to {high:.2f}) [{foretold:.2f}]")
    return cells


def _words(found: Found) -> list[str]:
    said, slower, faster, agree, pairs = [], [], [], 0, 0
    for (name, executor), measured in found.items():
        base = measured.times(UNOPTIMISED)
        for form in FORMS[1:]:
            own = measured.times(form.title)
            if not own.cpu_ms or not base.cpu_ms or own.graph_hash == base.graph_hash:
                continue
            median, low, high = ratios(own, base)
            pairs += 1
            agree += low <= base.metrics["time_us"] / own.metrics["time_us"] <= high
            text = f"{GRAPHS[name].title} in {executor} ({form.title}, {median:.2f})"
            if high < 1:
                slower.append(text)
            elif low > 1:
                faster.append(text)
    said += [
        f"- Each of {pairs} intervals is of 95 % by itself: of twenty one lies beside the truth by chance.",
        f"- Faster than unoptimised beyond the interval: {'; '.join(faster) or 'none'}.",
        f"- Slower beyond the interval: {'; '.join(slower) or 'none'}.",
        f"- Of {pairs} predictions {agree} lie within the interval of what is measured.",
        "- The paper: TASO is 50.5 % faster than TensorFlow and 43.6 % faster than TensorRT on its BERT, "
        "and within 6 % of TensorRT on convolutional networks, on a GPU, where a launch is a large part of a "
        "small product.",
        *_multiplications(found),
    ]
    eager = {name: measured for (name, executor), measured in found.items() if executor == "eager"}
    own = [
        f"{GRAPHS[name].title} {ratios(measured.times(UNOPTIMISED), measured.times(AS_WRITTEN))[0]:.2f}"
        for name, measured in eager.items()
        if measured.times(UNOPTIMISED).cpu_ms
    ]
    said.append(
        "- What the executor alone does, without a substitution (packed weights, layouts), is not in the "
        f"bars. Against the module as written, `{UNOPTIMISED}` in eager PyTorch is so many times as fast: "
        f"{', '.join(own)}."
    )
    return said


def _multiplications(found: Found) -> list[str]:
    """How many of the toy BERT's operations TASO's rules leave."""
    measured = found.get(("toy_bert", "eager"))
    if measured is None:
        return []
    left = measured.times(TASO_RULES.title).metrics["flops"] / measured.times(UNOPTIMISED).metrics["flops"]
    return [f"- Of the toy BERT's operations {left:.0%} are left after TASO's search with TASO's rules."]


def _plot(found: Found, path: Path) -> None:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(EXECUTORS), sharey=True)
    for panel, executor in zip(panels, EXECUTORS, strict=True):
        mine = {name: measured for (name, own), measured in found.items() if own == executor}
        for shift, form in enumerate(FORMS[1:]):
            bars = []
            for measured in mine.values():
                own, base = measured.times(form.title), measured.times(UNOPTIMISED)
                bars.append(ratios(own, base) if own.cpu_ms and base.cpu_ms else (0.0, 0.0, 0.0))
            middle, low, high = np.array(bars).T
            places = np.arange(len(mine)) + 0.27 * (shift - 1)
            panel.bar(places, middle, 0.27, yerr=(middle - low, high - middle), capsize=2, label=form.title)
        panel.axhline(1, color="black", linewidth=0.6)
        titles = [GRAPHS[name].title for name in mine]
        panel.set_xticks(range(len(mine)), titles, rotation=25, ha="right", fontsize=7)
        panel.set_title(f"{executor}, one thread", fontsize=9)
    panels[0].set_ylabel("times as fast as unoptimised")
    panels[0].legend(fontsize=7)
    figure.savefig(path, dpi=90)


def report_memory(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    runs = runs_of(results.scale, results.place)
    found = {
        name: results.finished.outcome(run) for (name, executor), run in runs.items() if executor == "eager"
    }
    rows, lines = [], []
    for name, measured in found.items():
        base, own = measured.times(UNOPTIMISED), measured.times(GREEDY.title)
        both = [
            (float(np.median(each.cpu_ms)), each.call_mb or float("nan"), each.metrics["peak_bytes"] / 1e6)
            for each in (base, own)
        ]
        rows += [(name, title, *each) for title, each in zip((UNOPTIMISED, GREEDY.title), both, strict=True)]
        saved = [1 - after / before for before, after in zip(*both, strict=True)]
        theirs = THEIR_MEMORY.get(name)
        shown: Sequence[Cell] = (
            (theirs[0], theirs[1], f"{theirs[2]:.1%}", f"{theirs[3]:.1%}") if theirs else ("",) * 4
        )
        saved[0] = 1 - 1 / ratios(own, base)[0]  # turn by turn, as in figure 4.1
        lines.append([GRAPHS[name].title, *both[0], *(f"{each:.1%}" for each in saved), *shown])
    write_csv(
        folder / "table4.2.csv", ("graph", "form", "cpu_median_ms", "call_mb", "predicted_peak_mb"), rows
    )
    _plot_memory(rows, folder / "table4.2.png")
    header = (
        "graph", "ms", "MB of a call", "MB predicted", "time saved", "memory of a call saved",
        "predicted memory saved", "theirs: ms", "GiB", "time saved", "memory saved",
    )  # fmt: skip
    return [
        "![memory](table4.2.png)",
        "",
        *table(header, lines),
        "",
        f"Eager PyTorch with one thread; saved by `{GREEDY.title}`. Memory of a call is the most that "
        "tensors take during a call beyond what they took before it: activations and scratch space, no "
        "weights. Predicted is the most that live activations take at one time.",
        "",
        *_more_memory(found),
        "- The paper's memory is that of a whole process with TensorFlow on a GPU, most of which no "
        "substitution can change; so its savings of 0.6 to 4.5 % and ours are shares of different things.",
        "- The paper's optimised graphs are those of its model-based agent; here they are greedy search's.",
    ]


def _more_memory(found: Mapping[str, Measured]) -> list[str]:
    """Said of graphs of which a call takes more memory after the rewriting."""
    more = {}
    for name, measured in found.items():
        before, after = (measured.times(form).call_mb for form in (UNOPTIMISED, GREEDY.title))
        if before and after and after > 1.05 * before:
            more[GRAPHS[name].title] = after / before - 1
    told = ", ".join(f"{title} {share:.0%}" for title, share in more.items())
    return [f"- A call takes more memory after the rewriting: {told}."] * bool(more)


def _plot_memory(rows: Sequence[Sequence[Cell]], path: Path) -> None:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    panel = figure.subplots()
    titles = [GRAPHS[str(row[0])].title for row in rows[::2]]
    for shift, form in enumerate((UNOPTIMISED, GREEDY.title)):
        values = [float(row[3]) for row in rows[shift::2]]
        panel.bar(np.arange(len(values)) + 0.4 * (shift - 0.5), values, 0.4, label=form)
    panel.set_xticks(range(len(titles)), titles, rotation=20, ha="right", fontsize=8)
    panel.set_ylabel("MB of a call")
    panel.legend(fontsize=8)
    figure.savefig(path, dpi=90)


_NOTE = "Each executor has a process of its own; its forms take turns. The machine may have had other work."
FIGURE_4_1 = Experiment(
    "Measured latencies of the optimised graphs",
    "Parker 2021, figure 4.1",
    lambda scale, place: [*runs_of(scale, place).values(), *peers_of(scale).values()],
    report_latencies,
    _NOTE,
)
TABLE_4_2 = Experiment(
    "Latency and memory",
    "Parker 2021, table 4.2",
    lambda scale, place: [run for (_, own), run in runs_of(scale, place).items() if own == "eager"],
    report_memory,
    _NOTE,
)
