"""One command for new hardware: measure it, train the agent on its costs, compare, and write a report.

    python training/retrain.py --minutes 10

The device is probed and, with --models, the nodes of these models are timed. The agent learns in a world
model, both from random weights. The result is a directory with `agent.safetensors`, its manifest, a model
card `CARD.md`, `REPORT.md` with plots, and `scores.json`; use it with `options={"agent": path}` or the
environment variable TORCHRLOPT_AGENT. --resume continues an interrupted run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

if __package__ in (None, ""):  # run as a script, not as a module
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from baselines.shared.controls import RANDOM_NETWORK, control
from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.errors import AgentError, OptionsError
from torchrlopt.machine.cost import device_model
from torchrlopt.plan.search import Searcher
from torchrlopt.storage.files import write_whole
from training.checkpoints import SHIPPED_ROW, stripped
from training.config import Config
from training.device import measure
from training.device.prices import Prices, cost_of, prices_of
from training.scores import report
from training.scores.evaluate import COLUMNS, Score, held_out_graphs, plans_of, scores_of, table_of
from training.train import add_arguments, config_of, trainer_of
from training.trainer import AGENT, STATE, Trainer, claim

logger = logging.getLogger("torchrlopt")

TEST_GRAPHS = 24
TEST_EXPANSIONS = 64
PRICES = "prices.json"
TARGET = "target.json"


@dataclasses.dataclass(frozen=True)
class Target:
    """The training target of an agent.

    Attributes:
        device: "cpu" or "cuda"; its costs are learnt.
        executor: its prices are used.
        models: of the suite; their nodes are timed, and the agent is tested on them too.
        profile_s: seconds of timing for each model.
    """

    device: str = "cpu"
    executor: str = "eager"
    models: tuple[str, ...] = ()
    profile_s: float = 20.0


def retrain(
    config: Config,
    folder: Path,
    target: Target,
    *,
    resume: bool = False,
    test_graphs: int = TEST_GRAPHS,
) -> dict[str, Score]:
    """Measure, train, evaluate on held-out graphs, and write agent, scores, card and report.

    Writes the trained agent, or the shipped one if that is better on these costs.

    Args:
        config: all arguments of the training.
        folder: of the run.
        target: device and models.
        resume: continue the run in the folder.
        test_graphs: number of held-out graphs.

    Returns:
        Scores by searcher.

    Raises:
        FileExistsError: the folder holds a run and `resume` is not set.
        OptionsError: the run there has other arguments or another target, there is nothing to test on,
            networks of these arguments are no agent, or the training is on one graph.
    """
    if (config.row, config.encoder) != (SHIPPED_ROW, "graph_network"):
        raise OptionsError(
            "only one kind of networks can be an agent",
            expected=f"row {SHIPPED_ROW} with its graph_network encoder",
            got=f"row {config.row}, encoder {config.encoder}",
            todo=f"train others with python -m training.train --row {config.row}",
        )
    if config.graph:
        raise OptionsError(
            "an agent that was trained on one graph is none for all of them",
            got=f"graph={config.graph}",
            todo="train on one graph with python -m training.train --graph",
        )
    if test_graphs < 1 and not target.models:
        raise OptionsError("agents are compared on held-out graphs", got=test_graphs, expected="1 or more")
    typical = prices_of(device_model(target.executor, target.device))
    claim(folder, resume)  # refuse another run before measuring anything
    _claim_for(folder, target, resume)
    graphs = measure.graphs_of(target.models)
    prices = _prices(folder, target, typical)
    trainer = trainer_of(config, folder, resume=resume, prices=prices)
    trainer.run()
    samples = [sample.graph for sample in held_out_graphs(test_graphs)] + list(graphs.values())
    agent, package = Agent(stripped(trainer.controller), {}), _of_package(trainer.library)
    searchers: dict[str, Searcher] = {
        "agent": AgentSearcher(agent),
        RANDOM_NETWORK: control(RANDOM_NETWORK, agent, config.seed),
    }
    if package is not None:
        searchers["shipped"] = AgentSearcher(package, "shipped")
    cost = cost_of(trainer.prices)
    plans = plans_of(searchers, samples, trainer.library, cost, TEST_EXPANSIONS)
    scores = scores_of(plans)
    kept = package if package is not None and scores["shipped"].ratio < scores["agent"].ratio else None
    entries = {name: dataclasses.asdict(score) for name, score in scores.items()}
    summary = {"device": target.device, "graphs": len(samples), "searchers": entries}
    path = folder / AGENT
    if kept is None:
        trainer.export(summary, path)
    else:
        checkpoint.save(path, kept.network, trainer.library, {**kept.metadata, "scores": summary})
    (folder / "scores.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    (folder / "CARD.md").write_text(card(trainer, scores, target, path, kept), encoding="utf-8")
    names = [f"held-out graph {i}" for i in range(test_graphs)] + list(graphs)
    report.write(folder, names, plans, scores)
    return scores


def _claim_for(folder: Path, target: Target, resume: bool) -> None:
    """Record the measurement target in the folder, or check it against that of the run there.

    Raises:
        FileExistsError: the folder holds measurements and `resume` is not set.
        OptionsError: they are for another device, executor or models.
    """
    path = folder / TARGET
    is_begun = (folder / PRICES).exists() or (folder / STATE).exists()
    mine = {"device": target.device, "executor": target.executor, "models": list(target.models)}
    if path.exists() and is_begun:
        if not resume:
            raise FileExistsError(f"{folder} holds what a run has measured; continue it with --resume")
        its = json.loads(path.read_text(encoding="utf-8"))
        if its != mine:
            raise OptionsError("the run is for another target", where=str(folder), expected=its, got=mine)
    write_whole(path, json.dumps(mine).encode())


def _of_package(library: _C.Library) -> Agent | None:
    try:
        return checkpoint.load(catalogue.SHIPPED, library)
    except AgentError as error:
        logger.warning("the package's agent is left out: %s", error)
        return None


def _prices(folder: Path, target: Target, typical: Prices) -> Prices:
    """The prices that the run started with, else newly measured ones."""
    path = folder / PRICES
    if path.exists():
        return Prices.from_json(path.read_text(encoding="utf-8"))
    prices = measure.measure(target.device, target.executor, target.models, target.profile_s) or typical
    write_whole(path, prices.to_json().encode())
    return prices


def card(
    trainer: Trainer,
    scores: Mapping[str, Score],
    target: Target,
    path: Path,
    kept: Agent | None = None,
) -> str:
    """The model card: provenance and performance of the agent."""
    table = "\n".join(table_of(scores))
    measured = len(trainer.prices.measured)
    models = ", ".join(target.models) or "none"
    instead = ""
    if kept is not None:
        instead = "\nThe file holds the package's agent: this training found no better one:\n"
    return f"""# {path.name}
{instead}
Row `{trainer.config.row}`, {trainer.update} updates, {trainer.real_steps} real steps,
{trainer.seconds / 3600:.2f} h on {platform.processor() or platform.machine()}, costs of `{target.device}`
under `{target.executor}`, {measured} measured prices (models timed: {models}).
Library {trainer.library.hash}, schema {trainer.controller.schema.hash}, seed {trainer.config.seed}.

Graphs that training never saw: families and structures that are held out, and the models named above. At most
{TEST_EXPANSIONS} expansions each.

{table}
"""


def _names(text: str) -> Sequence[str]:
    return tuple(name for name in text.split(",") if name)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/retrain"), help="directory of the run")
    parser.add_argument("--resume", action="store_true", help="continue the run in it")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default, help="whose costs are learnt")
    parser.add_argument("--executor", default="eager", help="whose prices are learnt")
    parser.add_argument("--models", default="", help="models of the suite to time and to test on: a,b,c")
    parser.add_argument("--profile-s", type=float, default=20.0, help="seconds of timing for each model")
    parser.add_argument("--test-graphs", type=int, default=TEST_GRAPHS, help="held-out graphs")
    add_arguments(parser, row=SHIPPED_ROW, minutes=10.0, updates=10**6)
    given = parser.parse_args()
    names = _names(given.models)
    try:
        measure.check_names(names)
    except ValueError as error:
        parser.error(str(error))
    try:
        scores = retrain(
            config_of(given),
            given.out,
            Target(given.device, given.executor, tuple(names), given.profile_s),
            resume=given.resume,
            test_graphs=given.test_graphs,
        )
    except (OptionsError, FileExistsError) as error:
        parser.error(str(error))
    table = Table(*COLUMNS)
    for name, score in scores.items():
        table.add_row(name, *score.cells())
    console = Console()
    console.print(table)
    path = given.out / "agent.safetensors"
    console.print(f"written: {path}, {given.out / 'REPORT.md'}")
    console.print(f"use it: options={{'agent': '{path}'}}, or TORCHRLOPT_AGENT={path}", highlight=False)


if __name__ == "__main__":
    main()
