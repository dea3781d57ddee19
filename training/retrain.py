"""One command for new hardware: train an agent on its costs, compare it, and write it with a report.

    python training/retrain.py --minutes 10

Continues with `--resume` where it was ended. The result is a directory with `agent.safetensors`, its
manifest, a model card `CARD.md` and `scores.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

if __package__ in (None, ""):  # started as a file, not as a module
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torchrlopt.cost import device_model
from training.config import Config
from training.evaluate import Score, held_out_graphs, plans_of, scores_of, searchers_of
from training.prices import cost_of, prices_of
from training.train import Trainer, add_arguments, config_of

TEST_GRAPHS = 24
TEST_EXPANSIONS = 64


def retrain(config: Config, folder: Path, device: str, *, resume: bool, test_graphs: int) -> dict[str, Score]:
    """Train, evaluate on held-out graphs, and write agent, scores and card.

    Args:
        config: all arguments.
        folder: of the run.
        device: "cpu" or "cuda": whose costs are learnt.
        resume: continue the run in the folder.
        test_graphs: number of held-out graphs.

    Returns:
        Scores by searcher.
    """
    trainer = Trainer(config, folder, resume=resume, prices=prices_of(device_model("eager", device)))
    trainer.run()
    searchers = searchers_of(trainer.controller, trainer.library, config.seed)
    graphs = [sample.graph for sample in held_out_graphs(test_graphs)]
    plans = plans_of(searchers, graphs, trainer.library, cost_of(trainer.prices), TEST_EXPANSIONS)
    scores = scores_of(plans)
    entries = {name: dataclasses.asdict(score) for name, score in scores.items()}
    path = trainer.export({"device": device, "graphs": test_graphs, "searchers": entries})
    (folder / "scores.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    (folder / "CARD.md").write_text(card(trainer, scores, device, path), encoding="utf-8")
    return scores


def card(trainer: Trainer, scores: dict[str, Score], device: str, path: Path) -> str:
    """The model card: where the agent comes from and what it can do."""
    rows = "\n".join(
        f"| {name} | {score.ratio:.4f} | {score.to_greedy:.4f} | {score.better:.0%} "
        f"| {score.expansions:.0f} |"
        for name, score in scores.items()
    )
    return f"""# {path.name}

Row `{trainer.config.row}`, {trainer.update} updates, {trainer.real_steps} real steps,
{trainer.seconds / 3600:.2f} h on {platform.processor() or platform.machine()}, costs of `{device}`.
Library {trainer.library.hash}, schema {trainer.controller.schema.hash}, seed {trainer.config.seed}.

Held-out graphs, at most {TEST_EXPANSIONS} expansions each: families and structures that training never saw.

| searcher | cost after / before | against greedy | better than greedy | expansions |
|---|---|---|---|---|
{rows}
"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/retrain"), help="directory of the run")
    parser.add_argument("--resume", action="store_true", help="continue the run in it")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default, help="whose costs are learnt")
    parser.add_argument("--test-graphs", type=int, default=TEST_GRAPHS, help="held-out graphs")
    add_arguments(parser)
    parser.set_defaults(minutes=10.0, updates=10**6)
    given = parser.parse_args()
    config = config_of(given)
    scores = retrain(config, given.out, given.device, resume=given.resume, test_graphs=given.test_graphs)
    table = Table("searcher", "cost after / before", "against greedy", "better", "expansions")
    for name, score in scores.items():
        numbers = (f"{score.ratio:.4f}", f"{score.to_greedy:.4f}", f"{score.better:.0%}")
        table.add_row(name, *numbers, f"{score.expansions:.0f}")
    console = Console()
    console.print(table)
    console.print(f"written: {given.out / 'agent.safetensors'}")


if __name__ == "__main__":
    main()
