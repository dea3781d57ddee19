"""The value of networks that rate candidates, in a guided beam search and alone, on held-out graphs.

    python -m training.scores.networks runs/plan/networks.safetensors --graphs 40 --seed 3

compares checkpoints of the rows "mf", "plan" and "gumbel" with random weights, and with the same search
without a network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from scipy import stats

from baselines.search import limits_of_steps
from torchrlopt import _C
from torchrlopt.env import OUTCOMES
from torchrlopt.errors import AgentError
from torchrlopt.machine.cost import cost_model
from torchrlopt.options import SearchOptions
from torchrlopt.substitutions import load_library
from training import checkpoints
from training.episodes.play import CandidateChooser
from training.episodes.searched_play import play_likeliest
from training.networks.candidate_controller import CandidateController, Guide
from training.progress import progress_bar
from training.scores.evaluate import MAX_BUDGET_MS, held_out_graph
from training.search.guided_searcher import BeamSearcher, CostGuide, random_control

REFERENCE_STEPS = 8000
REFERENCE_SEEDS = (1, 2)
MAX_STEPS = 60  # of an episode that a network plays without a search


def main(
    files: Annotated[list[Path], typer.Argument(help="Checkpoints of networks that rate candidates.")],
    graphs: Annotated[int, typer.Option(min=1, help="How many graphs.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Of the graphs.")] = 0,
    steps: Annotated[str, typer.Option(help="Limits of expansions, separated by commas.")] = "150,600,2000",
    primitives_only: Annotated[bool, typer.Option(help="Without the library's composites.")] = False,
) -> None:
    """Print how far costs are above those of iterated local search, as geometric means in %."""
    library, cost = load_library(primitives_only=primitives_only), cost_model("eager", threads=1)
    samples = [held_out_graph(number, seed).graph for number in range(graphs)]
    networks = {str(path): _networks(path, library) for path in files}
    networks["random"] = random_control(networks[str(files[0])], library, 0)
    limits = limits_of_steps(steps)
    table = Table("network", "alone", *(f"{limit} expansions" for limit in limits))
    with progress_bar() as progress:
        bar = progress.add_task("reference", total=2 + len(networks))
        reference = [_reference_us(graph, library, cost) for graph in samples]
        guides: dict[str, Guide] = {**networks, "none": CostGuide(len(library))}
        for name, guide in guides.items():
            progress.update(bar, advance=1, description=name)
            alone = [_alone_us(networks[name], graph, library, cost) for graph in samples if name in networks]
            row = [_above(alone, reference) if alone else ""]
            for limit in limits:
                searched = [_searched_us(guide, graph, library, cost, limit) for graph in samples]
                row.append(_above(searched, reference))
            table.add_row(name, *row)
        progress.advance(bar)
    Console().print(table)


def _networks(path: Path, library: _C.Library) -> CandidateController:
    try:
        network, _ = checkpoints.load(path, library)
    except AgentError as error:
        raise typer.BadParameter(str(error)) from error
    if not isinstance(network, CandidateController):
        raise typer.BadParameter(f"{path} rates no candidates")
    return network


def _above(costs_us: list[float], reference_us: list[float]) -> str:
    ratios = [cost / best for cost, best in zip(costs_us, reference_us, strict=True)]
    return f"{100 * (float(stats.gmean(ratios)) - 1):.2f}"


def _reference_us(graph: _C.Graph, library: _C.Library, cost: _C.CostModel) -> float:
    """The lower cost of two long iterated local searches."""
    given = {"searcher": "iterated", "budget_ms": MAX_BUDGET_MS, "budget_steps": REFERENCE_STEPS}
    found = [_C.search(graph, library, cost, seed=seed, **given) for seed in REFERENCE_SEEDS]
    return min(float(each["cost_after_us"]) for each in found)


def _alone_us(
    controller: CandidateController, graph: _C.Graph, library: _C.Library, cost: _C.CostModel
) -> float:
    """Cost after taking the likeliest step each time, until the likeliest step is to stop."""
    env = _C.VecRewriteEnv([graph], library, cost, max_steps=MAX_STEPS)
    env.reset([0], [{}])
    with torch.no_grad():
        return float(play_likeliest(CandidateChooser(controller), env)[OUTCOMES["best_us"]])


def _searched_us(guide: Guide, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, limit: int) -> float:
    options = SearchOptions(searcher="beam", budget_ms=MAX_BUDGET_MS, budget_steps=limit)
    return BeamSearcher(guide).search(graph, library, cost, options).cost_after_ms * 1000


if __name__ == "__main__":
    typer.run(main)
