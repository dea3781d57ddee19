"""Compares world models with the baseline prediction that a step does not change what is legal.

    python -m training.scores.worlds runs/wm runs/wm_plus --graphs 40

scores those of finished runs on their controllers' own episodes, on graphs that training never saw.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from torchrlopt import _C
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import cost_of, typical_prices
from training.dream_trainer import DreamTrainer
from training.episodes.play import Key, play_group
from training.random_keys import Purpose, torch_seed
from training.scores.evaluate import held_out_graphs, known_graph
from training.trainer import STATE
from training.world.latent_controller import MODELS, LatentController
from training.world.model_scores import model_scores
from training.world.replay import join, sequences

BY_CONSTRUCTION = (
    "The Pearson correlation of rewards is 1.000 by construction and shows nothing: what a step saves is "
    "among the features of a candidate, so the reward of a real step is arithmetic."
)
_COLUMNS = (
    "row", "graphs", "improvement predicted", "real", "reward of a step, Pearson", "legal after it, F1",
    "F1 if nothing changed",
)  # fmt: skip

Foretold = dict[str, dict[str, float]]  # scores by origin of the graphs


def foretold(
    controller: LatentController, library: _C.Library, cost: _C.CostModel, config: Config, graphs: int
) -> Foretold:
    """Score a world model's predictions of its controller's episodes on graphs that it was not trained on.

    Args:
        controller: with its world model.
        library: the one it was trained with.
        cost: prices.
        config: of its training; each graph is played from its start, `rollouts` times.
        graphs: per origin.

    Returns:
        `model_scores` by origin.
    """
    controller.eval()
    from_start = dataclasses.replace(config, original_share=1.0)
    origins = {
        "new graphs, known families": [known_graph(number) for number in range(graphs)],
        "held-out families": held_out_graphs(graphs),
    }
    found = {}
    for title, samples in origins.items():
        seen = []
        for number, sample in enumerate(samples):
            chooser = controller.chooser()
            key = Key(config.seed, torch_seed(Purpose.WORLD_MODEL_TEST), number)
            rollout = play_group(chooser, library, cost, key, from_start, graph=sample.graph)
            if rollout is not None:
                seen.append(sequences(chooser, rollout))
        generator = torch.Generator().manual_seed(torch_seed(Purpose.WORLD_MODEL_TEST, config.seed))
        found[title] = model_scores(controller.model, join(seen), generator)
    return found


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


def main(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs with a world model.")],
    graphs: Annotated[int, typer.Option(min=1, help="From each place.")] = 40,
) -> None:
    """Score the world models of runs."""
    torch.set_num_threads(1)
    library, prices = load_library(), typical_prices()
    found = {}
    for folder in runs:
        config = Config.from_json(torch.load(folder / STATE, weights_only=True)["config"])
        if config.row not in MODELS:
            raise typer.BadParameter(f"{folder}: row {config.row} has no world model")
        trainer = DreamTrainer(config, folder, resume=True, prices=prices)
        found[config.row] = foretold(trainer.controller, library, cost_of(prices), config, graphs)
    console = Console()
    for line in (*table_of_worlds(found), "", BY_CONSTRUCTION):
        console.print(line, soft_wrap=True, highlight=False)


if __name__ == "__main__":
    typer.run(main)
