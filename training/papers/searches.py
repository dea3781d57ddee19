"""Table 4.1 and figure 4.2 of the dissertation: the graphs, and TASO's search on them. Nothing is run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from torchrlopt import _C
from torchrlopt.machine.cost import cost_model
from torchrlopt.machine.cost.model import COST_CLASSES, device_model
from training.papers.experiment import THEIRS, Data, Experiment, Results, Runs, Shown, bars, frame, lines
from training.papers.graphs import GRAPHS, LIBRARIES, OURS, SMALL, TASO, graph_of, graphs_at, library
from training.papers.runner import Result, Scale, Work, kind, priced
from training.papers.stats import mean_text

PATIENCE_MS = 600_000.0  # a safeguard: searches are limited by their number of steps
#: Standard deviation of the logarithm of an operator's price. TASO measures its prices at the start of each
#: run, so its runs differ; our prices are fixed and vary by this noise.
NOISE = 0.05
#: Expansions after which plans are scored, in addition to the last.
BUDGETS = (10, 30, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
STEPS = 50_000
#: Searcher, alpha, rules.
CONTENDERS = (
    ("taso", 1.02, OURS), ("taso", 1.05, OURS), ("taso", 1.1, OURS), ("taso", 1.05, TASO),
    ("greedy", 1.05, OURS), ("greedy", 1.05, TASO),
)  # fmt: skip
MAIN = ("taso", 1.05, OURS)


def properties_of(graph: _C.Graph) -> dict[str, int]:
    """Contents of a graph, and the number of locations where substitutions of both libraries match."""
    nodes = {node: graph.node(node) for node in graph.topological_order()}
    operators = {node: entry for node, entry in nodes.items() if entry["op"] not in ("Input", "Weight")}
    layers = [entry for entry in operators.values() if COST_CLASSES[entry["op"]].lower() == "contraction"]
    sizes = {
        (each["op"], str(each["attrs"]), *(str(graph.type(value)) for value in each["inputs"]))
        for each in layers
    }
    depth: dict[int, int] = {}
    edges = 0
    for node, entry in operators.items():
        sources = [value[0] for value in entry["inputs"] if value is not None and value[0] in operators]
        edges += len(sources)
        depth[node] = 1 + max((depth[each] for each in sources), default=0)
    fits = {}
    for rules in (OURS, TASO):
        known = library(rules)
        fits[rules] = +Counter({name: len(known.matches(graph, name)) for name in known.names})
    return {
        "operators": len(operators),
        "edges": edges,
        "layers": len(layers),
        "unique_layers": len(sizes),
        "depth": max(depth.values()),
        "places": fits[OURS].total(),
        "substitutions": len(fits[OURS]),
        "taso_places": fits[TASO].total(),
        "taso_substitutions": len(fits[TASO]),
    }


def _of_rules(rules: str = OURS, executor: str = "eager", **others: Any) -> str:
    del others
    return f"{library(rules).hash} {NOISE} {BUDGETS} {priced(executor=executor)}"


@kind(lambda graph: f"{library(OURS).hash} {library(TASO).hash}")
def properties(work: Work, graph: str) -> Result:
    """See `properties_of`."""
    return properties_of(graph_of(graph))


def prices(executor: str, seed: int) -> _C.CostModel:
    """Typical prices of one thread, the same on every machine; seeds other than 0 add noise."""
    if seed == 0:
        return cost_model(executor, threads=1)
    rng = np.random.default_rng(seed)
    names = sorted({str(op["name"]) for op in _C.ops()})
    factors = np.exp(NOISE * rng.standard_normal(len(names)))
    return _C.CostModel(device_model(executor, threads=1), scales=dict(zip(names, factors, strict=True)))


def found_by(
    graph: str, searcher: str, steps: int, alpha: float = 1.05, rules: str = OURS, executor: str = "eager",
    seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Result of a search of the core with at most this many expansions."""
    return _C.search(
        graph_of(graph),
        library(rules),
        prices(executor, seed),
        searcher=searcher,
        budget_ms=PATIENCE_MS,
        budget_steps=steps,
        alpha=alpha,
    )


@kind(_of_rules)
def search(work: Work, graph: str, searcher: str, steps: int, alpha: float, rules: str, seed: int) -> Result:
    """One search; plans are scored with noise-free prices: their own noisy prices would flatter them."""
    cost = prices("eager", 0)
    first = cost.metrics(graph_of(graph))["time_us"]
    budgets = [*(each for each in BUDGETS if each < steps), steps]
    given = {"alpha": alpha, "rules": rules, "seed": seed}
    found = {each: found_by(graph, searcher, each, **given) for each in budgets}
    last = found[steps]
    progress = [*last["progress"], (last["expansions"], last["seconds"], last["cost_after_us"])]
    least = progress[-1][2] * (1 + 1e-9)
    return {
        "budgets": budgets,
        "gains": [1 - cost.metrics(each["graph"])["time_us"] / first for each in found.values()],
        "found_at": next(int(at) for at, _, us in progress if us <= least),
        "seconds": last["seconds"],
        "expansions": last["expansions"],
        "is_exhausted": last["exhausted"],
    }


def _properties_runs(scale: Scale) -> Runs:
    return {name: properties(graph=name) for name in graphs_at(1.0 if scale.share >= SMALL else scale.share)}


def _properties_data(results: Results, scale: Scale) -> Data:
    rows = [{"graph": name, **found} for name, found in results.items()]
    return Data({"": pd.DataFrame(rows).drop(columns="made")})


def _properties_shown(data: Data) -> Shown:
    own = data.main.set_index("graph")
    theirs = pd.DataFrame(THEIRS["properties"], index=["layers", "unique", "places"]).T
    own = own.join(theirs.add_prefix("theirs: ")).rename(index=GRAPHS).reset_index()
    titles = {
        "unique_layers": "unique layers", "places": "places for our library",
        "substitutions": "of so many substitutions",
        "taso_places": "places for TASO's rules", "taso_substitutions": "of so many",
        "theirs: places": 'theirs: "substitutions"',
    }  # fmt: skip
    table = own.rename(columns=titles)
    counted = [titles[name] for name in ("places", "taso_places", "theirs: places")]
    long = table.melt("graph", counted, "counted", value_name="candidates of the first step")
    return {"": bars(long, "graph", "candidates of the first step", hue="counted").figure}, {"table": table}


def _search_runs(scale: Scale) -> Runs:
    # A single run uses noise-free prices; several runs each draw theirs.
    seeds = range(1) if scale.seeds == 1 else range(1, scale.seeds + 1)
    return {
        (name, *who, seed): search(
            graph=name, searcher=who[0], steps=scale.steps(STEPS), alpha=who[1], rules=who[2], seed=seed
        )
        for name in graphs_at(scale.share)
        for who in CONTENDERS
        for seed in seeds
    }


def _search_data(results: Results, scale: Scale) -> Data:
    rows = [
        (*key, budget, gain)
        for key, found in results.items()
        for budget, gain in zip(found["budgets"], found["gains"], strict=True)
    ]
    ends = []
    for name in dict.fromkeys(key[0] for key in results):
        mine = [found for key, found in results.items() if key[:-1] == (name, *MAIN)]
        last, seconds = ([each[what] for each in mine] for what in ("found_at", "seconds"))
        cut = sum(not each["is_exhausted"] and each["expansions"] < scale.steps(STEPS) for each in mine)
        ends.append((name, min(last), max(last), float(np.median(seconds)), cut))
    key = ("graph", "searcher", "alpha", "rules", "seed")
    return Data(
        {
            "": frame(rows, *key, "budget", "gain"),
            "ends": frame(ends, "graph", "found_at_least", "found_at_most", "seconds", "ended_by_clock"),
        }
    )


def _titled(searcher: str, alpha: float, rules: str) -> str:
    how = f"TASO's search, alpha {alpha:g}" if searcher == "taso" else "greedy"
    return f"{how}, {LIBRARIES[rules]}"


def _search_shown(data: Data) -> Shown:
    who = data.main[["searcher", "alpha", "rules"]].itertuples(index=False, name=None)
    own = data.main.assign(who=[_titled(*each) for each in who], saved=100 * data.main["gain"])
    own["graph"] = own["graph"].map(GRAPHS)
    steps = int(own["budget"].max())

    def cells(rows: pd.DataFrame, by: str) -> pd.DataFrame:
        groups = rows.groupby(["graph", by], sort=False)["saved"]
        return groups.agg(lambda saved: mean_text(saved, ".1f", " %", ".1f")).unstack(by)

    of_main = own[(own["who"] == _titled(*MAIN)) & own["budget"].isin([200, 1_000, 5_000, steps])]
    ends = data.frames["ends"].set_index("graph")
    seconds = pd.Series(THEIRS["taso_seconds"], name="TASO's seconds")
    ends = ends.join(seconds.map("{:g}".format)).fillna({"TASO's seconds": ""}).rename(index=GRAPHS)
    by_budget = cells(of_main, "budget").rename(columns=lambda budget: f"{budget} steps").join(ends)
    titles = {"found_at_least": "last found at step, least", "found_at_most": "most"}
    by_budget = by_budget.drop(columns="ended_by_clock").rename(columns=titles)
    grid = lines(
        own, "budget", "saved", hue="who", style="searcher", col="graph", col_wrap=4, drawstyle="steps-post"
    )
    grid.set(xscale="log", xlabel="steps (expansions)", ylabel="predicted time saved, %")
    names = library(TASO).names
    return {"": grid.figure}, {
        "by_budget": by_budget.reset_index(),
        "by_contender": cells(own[own["budget"] == steps], "who").reset_index(),
        "steps": steps,
        "noise": NOISE,
        "seeds": own["seed"].nunique(),
        "main": _titled(*MAIN),
        "rules": sum(name.startswith("taso_") and not name.endswith("_linear") for name in names),
        "cut": int(ends["ended_by_clock"].sum()),
    }


TABLE_4_1 = Experiment(
    "Properties of the graphs",
    "Parker 2021, table 4.1",
    _properties_runs,
    _properties_data,
    _properties_shown,
    "table4.1",
)
FIGURE_4_2 = Experiment(
    "TASO's search: what is saved after so many steps",
    "Parker 2021, figure 4.2 and section 4.3.1; seconds of TASO by Yang et al. 2021 (Tensat)",
    _search_runs,
    _search_data,
    _search_shown,
    "fig4.2",
)
