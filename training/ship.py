"""Score finished runs on graphs that training never saw, and write their agents into the package.

    python -m training.ship runs/plan runs/mf runs/wm runs/wm_plus

Each run becomes `torchrlopt/agent/shipped/ROW.safetensors` with its manifest; `CARD.md` describes their
provenance and performance.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from torchrlopt import _C
from torchrlopt.agent import catalogue
from torchrlopt.agent.checkpoint import Agent, random_control
from torchrlopt.agent.networks.candidate_controller import CandidateController
from torchrlopt.agent.networks.substitution_encoder import SubstitutionGraphs
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.errors import OptionsError
from torchrlopt.plan.search import Searcher
from torchrlopt.searcher_table import agent_names
from torchrlopt.storage.files import write_whole
from torchrlopt.substitutions import load_library
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


def scores_of_runs(runs: Mapping[str, Trainer], cost: _C.CostModel, graphs: int, expansions: int) -> Scores:
    """Scores of the agents, of the core's searches and of random networks on held-out graphs."""
    samples = [sample.graph for sample in held_out_graphs(graphs)]
    found = {}
    for title, primitives_only in LIBRARIES.items():
        library = load_library(primitives_only=primitives_only)
        searchers: dict[str, Searcher] = {}
        for row, trainer in runs.items():
            controller = trainer.controller.eval()
            if isinstance(controller, CandidateController):
                controller.use_library(SubstitutionGraphs.of(library, controller.schema))
                control = random_control(Agent(controller, {}), library, 0)
                searchers["random_network"] = AgentSearcher(control, "random_network")
            searchers[row] = AgentSearcher(Agent(controller, {}), row)
        found[title] = scores_of(plans_of(searchers, samples, library, cost, expansions))
    return found


def world_scores_of(runs: Mapping[str, Trainer], cost: _C.CostModel, graphs: int) -> dict[str, Foretold]:
    """Scores of world models on their controllers' episodes, by row."""
    return {
        row: foretold(trainer.controller, trainer.library, cost, trainer.config, graphs)
        for row, trainer in runs.items()
        if isinstance(trainer, DreamTrainer)
    }


def card(
    runs: Mapping[str, Trainer],
    scores: Scores,
    worlds: Mapping[str, Foretold],
    graphs: int,
    expansions: int,
) -> str:
    """The model card of all agents."""
    lines = [
        "# The agents of the package",
        "",
        f"Trained and scored on {platform.processor() or platform.machine()} by typical prices of eager "
        f"PyTorch on a CPU, threads: 1; library {load_library().hash}. The searcher `agent` follows "
        f"`{catalogue.DEFAULT_ROW}`. No whole model was in any training; the families `grouped_residual`, "
        "`separable_cell`, `recurrent_cell` and a tenth of all block structures are held out and make the "
        "test graphs.",
        "",
        "| row | updates | real steps | imagined steps | hours | seed | schema |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, trainer in runs.items():
        lines.append(
            f"| {row} | {trainer.update} | {trainer.real_steps} | {trainer.imagined_steps} "
            f"| {trainer.seconds / 3600:.2f} | {trainer.config.seed} | {trainer.controller.schema.hash} |"
        )
    lines += ["", "Each was made by", "", "```sh hours"]
    lines += [f"{trainer.config.command()} --out runs/{row}" for row, trainer in runs.items()]
    lines += ["```"]
    for title, entries in scores.items():
        lines += [
            "",
            f"{graphs} held-out graphs, {title}, at most {expansions} expansions each:",
            "",
            *table_of(entries),
        ]
    if worlds:
        lines += [
            "",
            f"What the world models foretell of their controllers' episodes on {graphs} graphs each; the "
            f"improvement of an episode from its first graph and its actions alone. {BY_CONSTRUCTION}",
            "",
            *table_of_worlds(worlds),
        ]
    return "\n".join(lines) + "\n"


def ship(folders: Sequence[Path], target: Path, graphs: int, expansions: int) -> Scores:
    """Score runs and write their agents.

    Args:
        folders: of the runs, one per row.
        target: output folder.
        graphs: number of held-out graphs.
        expansions: of each search.

    Raises:
        OptionsError: a run was made on one graph or with other prices, or its row has no searcher.
    """
    prices = typical_prices()
    runs = {}
    for folder in folders:
        trainer = run_of(folder, prices)
        if trainer.config.graph:
            raise OptionsError(
                "an agent that was trained on one graph is none for all of them",
                where=str(folder),
                got=f"graph={trainer.config.graph}",
            )
        if trainer.config.row not in agent_names():
            raise OptionsError(
                "no searcher follows agents of this row",
                where=str(folder),
                expected=" or ".join(sorted(set(agent_names()) - {"agent"})),
                got=trainer.config.row,
                todo='use it with options={"agent": path}',
            )
        runs[trainer.config.row] = trainer
    cost = cost_of(prices)
    scores, worlds = scores_of_runs(runs, cost, graphs, expansions), world_scores_of(runs, cost, graphs)
    target.mkdir(parents=True, exist_ok=True)
    for row, trainer in runs.items():
        if isinstance(trainer.controller, CandidateController):
            full = load_library()
            trainer.controller.use_library(SubstitutionGraphs.of(full, trainer.controller.schema))
        own = {title: dataclasses.asdict(entries[row]) for title, entries in scores.items()}
        given = {"graphs": graphs, **own, **({"world": worlds[row]} if row in worlds else {})}
        trainer.export(path=target / f"{row}.safetensors", scores=given)
    text = card(runs, scores, worlds, graphs, expansions)
    write_whole(target / "CARD.md", text.encode())
    return scores


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs, one for each row")
    parser.add_argument("--out", type=Path, default=catalogue.FOLDER, help="where the agents go")
    parser.add_argument("--test-graphs", type=int, default=TEST_GRAPHS, help="held-out graphs")
    parser.add_argument("--expansions", type=int, default=TEST_EXPANSIONS, help="of each search")
    given = parser.parse_args()
    if given.test_graphs < 1:
        parser.error("--test-graphs: 1 or more, agents are compared on them")
    ship(given.runs, given.out, given.test_graphs, given.expansions)
    Console().print((given.out / "CARD.md").read_text(encoding="utf-8"), markup=False, highlight=False)


if __name__ == "__main__":
    main()
