"""Compares world models with the baseline prediction that a step does not change what is legal.

    python -m training.scores.worlds --graphs 40

scores the shipped ones on their controllers' own episodes, on graphs that training never saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
import typer
from rich.console import Console

from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.agent.world.latent_controller import LatentController
from torchrlopt.options import SearchOptions
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import cost_of, typical_prices
from training.scores.evaluate import held_out_graphs, known_graph
from training.scores.world_model_scores import held_out_scores

BY_CONSTRUCTION = (
    "The Pearson correlation of rewards is 1.000 by construction and shows nothing: what a step saves is "
    "among the features of a candidate, so the reward of a real step is arithmetic."
)
_ROWS = ("wm", "wm_plus")
_COLUMNS = (
    "row", "graphs", "improvement foretold", "real", "reward of a step, Pearson", "legal after it, F1",
    "F1 if nothing changed",
)  # fmt: skip

Foretold = dict[str, dict[str, float]]  # scores by origin of the graphs


def foretold(
    controller: LatentController, library: _C.Library, cost: _C.CostModel, config: Config, graphs: int
) -> Foretold:
    """Score a world model's predictions of its controller's episodes.

    Args:
        controller: with its world model.
        library: the one it was trained with.
        cost: prices.
        config: of its training.
        graphs: per origin.
    """
    samples = {
        "new graphs, known families": [known_graph(number).graph for number in range(graphs)],
        "held-out families": [sample.graph for sample in held_out_graphs(graphs)],
    }
    return {
        title: held_out_scores(controller, each, library, cost, config) for title, each in samples.items()
    }


def table_of_worlds(by_row: Mapping[str, Foretold]) -> list[str]:
    """Scores as lines of Markdown."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for row, by_title in by_row.items():
        for title, told in by_title.items():
            gains = f"{told['predicted_gain']:.3f} | {told['real_gain']:.3f} | {told['reward_pearson']:.3f}"
            lines.append(
                f"| {row} | {title} | {gains} | {told['mask_f1']:.3f} | {told['unchanged_f1']:.3f} |"
            )
    return lines


def main(graphs: Annotated[int, typer.Option(min=1, help="From each place.")] = 40) -> None:
    """Score the shipped world models."""
    torch.set_num_threads(1)
    library, cost = load_library(), cost_of(typical_prices())
    found = {}
    for row in _ROWS:
        agent = checkpoint.load(catalogue.path_of(SearchOptions(searcher=row)), library)
        assert isinstance(agent.controller, LatentController)
        found[row] = foretold(agent.controller, library, cost, Config.of_row(row), graphs)
    console = Console()
    for line in (*table_of_worlds(found), "", BY_CONSTRUCTION):
        console.print(line, soft_wrap=True, highlight=False)


if __name__ == "__main__":
    typer.run(main)
