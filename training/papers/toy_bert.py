"""Time saved on the toy BERT by CPU prices, by measurement, and by GPU prices."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from torchrlopt import _C
from torchrlopt.substitutions import load_library
from training.device.prices import cost_of, typical_prices
from training.papers import rows
from training.papers.experiment import THEIRS, Data, Results, Runs, Shown, bars, frame, levels
from training.papers.graphs import BERT, TITLES, bert, graph_of
from training.papers.logs import PLANS, best_of
from training.papers.rows import CPU, EXECUTOR, GPU, Steps
from training.papers.runner import EXECUTORS, Scale

METRICS = {"time_us": "predicted_time", "launches": "launches", "bytes": "memory_traffic", "flops": "flops"}


def bert_runs(scale: Scale) -> Runs:
    """See `Experiment`."""
    return {**rows.latencies(scale), **rows.on_gpu(scale)}


def bert_data(results: Results, scale: Scale) -> Data:
    """See `Experiment`."""
    graph = bert(scale)
    found, left = [], []
    for device in (CPU, GPU):
        # GPU results have their own keys.
        own = results if device == CPU else {key[1:]: each for key, each in results.items() if key[0] == GPU}
        rivals = own["rivals", graph]["plans"]
        plans = {name: (name, rivals[name]) for name in PLANS if name in rivals}
        for row in rows.TITLES:
            seed, steps = best_of(own, row, graph)
            plans[row] = f"{row} {seed}", steps
        before = _costs(graph, device, [])
        costs = {plan: _costs(graph, device, steps) for plan, (_, steps) in plans.items()}
        for plan, (name, _) in plans.items():
            saved = [100 * (1 - costs[plan][metric] / before[metric]) for metric in METRICS]
            times = [math.nan] * len(EXECUTORS)
            if device == CPU:
                ratios = [rows.ratios(results["latency", graph], each, name) for each in EXECUTORS]
                times = [100 * (1 - 1 / float(np.median(each))) for each in ratios]
            title = f"{PLANS[plan]}, the best seed" if plan in rows.TITLES else PLANS[plan]
            found.append((device, title, *saved, *times))
        most = min(costs, key=lambda plan: costs[plan]["time_us"])
        left += [(device, *each) for each in _left(graph, device, plans[most][1])]
    rates = typical_prices(EXECUTOR, GPU).rates
    facts = {"graph": TITLES[graph], **{name: rates[name] for name in ("launch_us", "contraction_launch_us")}}
    main = frame(found, "device", "plan", *METRICS.values(), *EXECUTORS)
    return Data({"": main, "left": frame(left, "device", "operator", "percent", "launches")}, facts)


def _replayed(graph: str, steps: Steps) -> _C.Graph:
    return _C.replay(graph_of(graph), load_library(), [(name, at) for name, at in steps])


def _costs(graph: str, device: str, steps: Steps) -> dict[str, float]:
    """Costs of a plan by the prices of a device."""
    cost = cost_of(typical_prices(EXECUTOR, device))
    return dict(_C.RewriteState(_replayed(graph, steps), load_library(), cost).metrics)


def _left(graph: str, device: str, steps: Steps) -> list[tuple[str, float, int]]:
    """Where a plan's time goes: by operator, in percent of the original time, with the launches."""
    cost, last = cost_of(typical_prices(EXECUTOR, device)), _replayed(graph, steps)
    before = cost.total(graph_of(graph))["time_us"]
    spent, launched = Counter[str](), Counter[str]()
    for node in last.topological_order():
        price, operator = cost.node(last, node), str(last.node(node)["op"])
        spent[operator] += price["time_us"]
        launched[operator] += int(price["launches"])
    return [(name, 100 * time / before, launched[name]) for name, time in spent.most_common() if time > 0]


def bert_shown(data: Data) -> Shown:
    """See `Experiment`."""
    own, left = (
        data.main,
        data.frames["left"].assign(percent=data.frames["left"]["percent"].map("{:.1f}".format)),
    )
    titles = {
        "plan": "plan of", "predicted_time": "estimated time", "memory_traffic": "memory traffic",
        "flops": "FLOPs",
    }  # fmt: skip
    numbers = own.astype(dict.fromkeys(METRICS.values(), float)).rename(columns=titles)
    tables = {device: table.drop(columns="device").dropna(axis="columns", how="all")
              for device, table in numbers.groupby("device")}  # fmt: skip
    lefts = {device: table.drop(columns="device") for device, table in left.groupby("device")}
    long = own.melt(
        ["device", "plan"], ["predicted_time", *EXECUTORS], "how", value_name="time saved, %"
    ).dropna()
    long["how"] = long["how"].where(long["device"] == CPU, "predicted for a GPU")
    grid = bars(long, "plan", "time saved, %", hue="how", aspect=2)
    theirs = THEIRS["predicted_of_toy_bert"]
    levels(grid.ax, {"theirs, predicted": theirs})
    context = {"tables": tables, "left": lefts, "theirs": theirs}
    return {"": grid.figure}, {**context, "their_measured": THEIRS["saved_by_wm"][BERT]}
