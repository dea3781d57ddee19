"""Score a finished run on graphs that training never saw, and write its agent into the package.

    python -m training.ship runs/wm_plus

The networks lose what only training needs (`training.checkpoints.stripped`) and become
`torchrlopt/agent/shipped/agent.safetensors` with its manifest. `CARD.md` describes where it comes from and
how good it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
from pathlib import Path

import torch
from rich.console import Console

from baselines.shared.controls import RANDOM_NETWORK, control
from torchrlopt import _C
from torchrlopt.agent import catalogue
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.errors import OptionsError
from torchrlopt.storage.files import write_whole
from torchrlopt.substitutions import load_library
from training.checkpoints import SHIPPED_ROW, stripped
from training.config import Config
from training.device.prices import Prices, cost_of, typical_prices
from training.dream_trainer import DreamTrainer
from training.scores.evaluate import Score, held_out_graphs, plans_of, scores_of, table_of
from training.scores.worlds import BY_CONSTRUCTION, Foretold, foretold, table_of_worlds
from training.train import trainer_of
from training.trainer import STATE, Trainer

TEST_GRAPHS = 60
TEST_EXPANSIONS = 150
LIBRARIES = {"the full library": False, "primitives only": True}

Scores = dict[str, dict[str, Score]]  # by library and searcher


def run_of(folder: Path, prices: Prices) -> Trainer:
    """Open a run at its last saved state.

    Raises:
        FileNotFoundError: the folder holds no run.
    """
    config = Config.from_json(torch.load(folder / STATE, weights_only=True)["config"])
    return trainer_of(config, folder, resume=True, prices=prices)


def scores_of_agent(agent: Agent, cost: _C.CostModel, graphs: int, expansions: int) -> Scores:
    """Scores of an agent, of the core's searches and of a random network on held-out graphs."""
    samples = [sample.graph for sample in held_out_graphs(graphs)]
    searchers = {RANDOM_NETWORK: control(RANDOM_NETWORK, agent, 0), "agent": AgentSearcher(agent)}
    found = {}
    for title, primitives_only in LIBRARIES.items():
        library = load_library(primitives_only=primitives_only)
        found[title] = scores_of(plans_of(searchers, samples, library, cost, expansions))
    return found


def card(trainer: Trainer, scores: Scores, world: Foretold, graphs: int, expansions: int) -> str:
    """The model card."""
    config = trainer.config
    lines = [
        "# The agent of the package",
        "",
        f"Trained and scored on {platform.processor() or platform.machine()} by typical prices of eager "
        f"PyTorch on a CPU, threads: 1; library {load_library().hash}. No whole model was in any training; "
        "the families `grouped_residual`, `separable_cell`, `recurrent_cell` and a tenth of all block "
        "structures are held out and make the test graphs.",
        "",
        "| row | updates | real steps | imagined steps | hours | seed | schema |",
        "|---|---|---|---|---|---|---|",
        f"| {config.row} | {trainer.update} | {trainer.real_steps} | {trainer.imagined_steps} "
        f"| {trainer.seconds / 3600:.2f} | {config.seed} | {trainer.controller.schema.hash} |",
        "",
        "It was made by",
        "",
        "```sh hours",
        f"{config.command()} --out runs/{config.row}",
        "```",
    ]
    for title, entries in scores.items():
        lines += [
            "",
            f"{graphs} held-out graphs, {title}, at most {expansions} expansions each:",
            "",
            *table_of(entries),
        ]
    lines += [
        "",
        f"What the world model, which is not in the package, predicts of its policy's episodes on {graphs} "
        "graphs each: the improvement of an episode from its first graph and its actions alone. "
        f"{BY_CONSTRUCTION}",
        "",
        *table_of_worlds({config.row: world}),
    ]
    return "\n".join(lines) + "\n"


def round_weights(network: torch.nn.Module) -> None:
    """Round to 15 bits of mantissa, in place: the last byte of each weight becomes 0 and compresses well.

    The agent is the largest file of a wheel; this takes 0.55 of its 2.9 MB.
    """
    for weight in network.state_dict().values():
        if weight.dtype == torch.float32:
            weight.copy_(((weight.view(torch.int32) + 0x80) & ~0xFF).view(torch.float32))


def ship(folder: Path, target: Path, graphs: int, expansions: int) -> Scores:
    """Score a run and write its agent.

    Args:
        folder: of the run.
        target: output folder.
        graphs: number of held-out graphs.
        expansions: of each search.

    Raises:
        OptionsError: the run was made on one graph or with other prices, or its row is not the shipped one.
    """
    prices = typical_prices()
    trainer = run_of(folder, prices)
    config = trainer.config
    if config.graph:
        raise OptionsError(
            "an agent that was trained on one graph is none for all of them",
            where=str(folder),
            got=f"graph={config.graph}",
        )
    if config.row != SHIPPED_ROW or not isinstance(trainer, DreamTrainer):
        raise OptionsError(
            "the package has no agents of this row", where=str(folder), expected=SHIPPED_ROW, got=config.row
        )
    cost = cost_of(prices)
    round_weights(trainer.controller)
    agent = Agent(stripped(trainer.controller), {})
    scores = scores_of_agent(agent, cost, graphs, expansions)
    world = foretold(trainer.controller.eval(), trainer.library, cost, config, graphs)
    target.mkdir(parents=True, exist_ok=True)
    own = {title: dataclasses.asdict(entries["agent"]) for title, entries in scores.items()}
    trainer.export({"graphs": graphs, **own, "world": world}, target / catalogue.SHIPPED.name)
    write_whole(target / "CARD.md", card(trainer, scores, world, graphs, expansions).encode())
    return scores


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--out", type=Path, default=catalogue.SHIPPED.parent, help="where the agent goes")
    parser.add_argument("--test-graphs", type=int, default=TEST_GRAPHS, help="held-out graphs")
    parser.add_argument("--expansions", type=int, default=TEST_EXPANSIONS, help="of each search")
    given = parser.parse_args()
    if given.test_graphs < 1:
        parser.error("--test-graphs: 1 or more, agents are compared on them")
    ship(given.run, given.out, given.test_graphs, given.expansions)
    Console().print((given.out / "CARD.md").read_text(encoding="utf-8"), markup=False, highlight=False)


if __name__ == "__main__":
    main()
