"""Trainings of rows on one graph, the results of their policies, and rivals that need no training."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchrlopt import _C, searcher_table
from torchrlopt.agent import catalogue
from torchrlopt.machine.profiling import run_times, trace
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import graph_hash
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import cost_of, typical_prices
from training.dream_trainer import DreamTrainer
from training.learning import ppo
from training.networks.two_stage_controller import TwoStageController
from training.papers.experiment import Runs
from training.papers.graphs import bert, graph_of, module_of, trained_on
from training.papers.policies import DRAWN, Steps, UniformCandidates, evaluated, gain_of, played
from training.papers.runner import EXECUTORS, Result, Run, Scale, Work, kind, measured, priced
from training.random_keys import Purpose, torch_seed
from training.real_trainer import RealTrainer
from training.train import trainer_of
from training.trainer import STATE
from training.world.model_scores import episode_gains
from training.world.replay import sequences

EXECUTOR = "eager"  # its prices are the rewards
CPU, GPU = "cpu", "cuda"
#: In addition to the defaults of runs on one graph.
SETTINGS: dict[str, dict[str, Any]] = {
    "mf": {"max_steps": 50},
    "wm": {"max_steps": 50, "model_batches": 12, "dream_batch": 128, "dream_updates": 5},
}
TITLES = {"mf": "MF", "wm": "WM"}
UPDATES = 400  # of a full training
REWARD_UPDATES = 100  # of a training per reward: a quarter, like theirs (500 epochs of 2,000)
DREAM_UPDATES = 100  # of a policy for each temperature
LEAST = 4  # minimum number of updates; the first two of a world model only collect at random
TEMPERATURES = (0.1, 0.5, 0.75, 1.0, 1.2, 1.5, 1.75, 2.0, 2.5, 3.0)
ALPHAS = tuple(tenths / 10 for tenths in range(11))
#: Points of the grid that have a name in the dissertation, so that both use one run.
NAMED = {0.1: "R3", 0.5: "R4", 0.8: "R1", 1.0: "R5"}
OUR_REWARD = "best_so_far"
REWARDS = ("R1", "R2", "R3", "R4", "R5", OUR_REWARD)
#: TASO's budget in the dissertation, its alpha, and the expansions of the agent.
TASO_STEPS, TASO_ALPHA, AGENT_STEPS = 50_000, 1.05, 2_000
ORIGINAL, AGAIN = "original", "original again"
ROUNDS, ROUND_S = 9, 0.25  # each round gives one median per plan; seconds per plan


def config_of(row: str, graph: str, **given: Any) -> Config:
    """The training configuration of a row on a graph."""
    return Config.of_row(row, **{"graph": graph, **given, **SETTINGS[row]})


def _of_training(row: str, graph: str, device: str, reward: str, minutes: float, **others: Any) -> str:
    config = config_of(row, graph, reward=reward, minutes=minutes)
    return f"{config.settings()} {priced(executor=EXECUTOR, device=device)} {DRAWN}"


def trainer_in(
    folder: Path, *, row: str, graph: str, seed: int, updates: int, reward: str, device: str, minutes: float
) -> RealTrainer | DreamTrainer:
    """Open the training of a run, resuming it if it was started before."""
    config = config_of(row, graph, seed=seed, updates=updates, reward=reward, minutes=minutes)
    prices = typical_prices(EXECUTOR, device)
    resume = (folder / STATE).exists()
    return trainer_of(config, folder, resume=resume, prices=prices, graph=graph_of(graph))


@kind(_of_training)
def training(work: Work, **given: Any) -> Result:
    """Train one row on one graph and play the resulting policy; an interrupted run is resumed."""
    trainer = trainer_in(work.folder, **given)
    for _ in trainer.updates():
        pass
    return evaluated(trainer, given["graph"])


def _of_rivals(device: str, **others: Any) -> str:
    agent = catalogue.digest(SearchOptions(searcher="agent"))
    prices = priced(executor=EXECUTOR, device=device)
    return f"{prices} {agent} {AGENT_STEPS} {TASO_ALPHA} {SETTINGS} {DRAWN}"


@kind(_of_rivals)
def rivals(work: Work, graph: str, seed: int, taso_steps: int, device: str) -> Result:
    """Rivals without training: greedy and TASO's search, the shipped agent, and random play."""
    first, library = graph_of(graph), load_library()
    cost = cost_of(typical_prices(EXECUTOR, device))
    plans: dict[str, Steps] = {}
    for name, steps in (("greedy", 0), ("taso", taso_steps), ("agent", AGENT_STEPS)):
        options = SearchOptions(
            searcher=name,
            alpha=TASO_ALPHA,
            budget_ms=600_000.0,  # not binding: the limit is in expansions
            budget_steps=steps,
            on_error="raise",  # a fallback searcher's plan would not be the agent's
        )
        searcher = searcher_table.module_of(name).make_searcher(options, library)
        plans[name] = list(searcher.search(first, library, cost, options).steps)
    random = {}
    for row in SETTINGS:
        config = config_of(row, graph, seed=seed)
        uniform = UniformCandidates(row == "mf" or config.macros)
        random[row] = played(first, cost, [uniform] * 2, config)[0]
        plans[f"random {row}"] = random[row]["steps"]
    return {
        "plans": plans,
        "gains": {name: gain_of(first, cost, steps) for name, steps in plans.items()},
        "random_gains": {row: each["gains"] for row, each in random.items()},
    }


@kind()
def dreamt(work: Work, temperature: float, updates: int, base: tuple[tuple[str, Any], ...]) -> Result:
    """Train a new policy in a finished world model at one temperature, then score both.

    "foretold" and "real" are returns of the same episodes, played by the resulting policy.

    Raises:
        FileNotFoundError: the folder of the training no longer exists.
    """
    given = dict(base)
    if not (work.folders[0] / STATE).exists():
        raise FileNotFoundError(f"there is no training in {work.folders[0]}; remove its .json as well")
    trainer = trainer_in(work.folders[0], **given)
    assert isinstance(trainer, DreamTrainer)
    seed = torch_seed(Purpose.TEMPERATURE, given["seed"])
    trainer.config = dataclasses.replace(trainer.config, temperature_dream=temperature)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trainer.policy = TwoStageController(trainer.model.state_width, trainer.policy.rules)
    optimiser = torch.optim.Adam(trainer.policy.parameters(), trainer.config.learning_rate)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        ppo.update(trainer.policy, optimiser, [trainer.dream(generator)], trainer.config, generator)
    trainer.policy.eval()
    latent = [trainer.controller.chooser(trainer.policy) for _ in range(2)]
    rollout = played(graph_of(given["graph"]), cost_of(trainer.prices), latent, trainer.config)[1]
    foretold, real = episode_gains(trainer.model, sequences(latent[1], rollout), generator, temperature)
    return {"foretold": foretold.tolist(), "real": real.tolist()}


@kind(lambda **given: f"{measured(executor=EXECUTOR)} {ROUNDS} {ROUND_S}", measures=True)
def latency(work: Work, graph: str, names: Sequence[str]) -> Result:
    """Time all plans on one graph in both executors: the median of each round of alternating calls.

    "original again" is the original graph once more, which shows how much two measurements of a graph differ.
    "same" maps a plan to an earlier one that leads to the same graph and was measured in its place.

    Args:
        work: needs the rivals, then the trainings.
        graph: its name.
        names: of the plans of the trainings.
    """
    others, *trained = work.needed
    own = {name: each["played"]["steps"] for name, each in zip(names, trained, strict=True)}
    source, library = trace(*module_of(graph))[0], load_library()
    graphs: dict[str, _C.Graph] = {}
    hashes: dict[str, str] = {}
    same: dict[str, str] = {}
    for plan, steps in {ORIGINAL: [], **others["plans"], **own}.items():
        found = _C.replay(source.program.graph, library, [(name, at) for name, at in steps])
        first = hashes.setdefault(graph_hash(found), plan)
        if first == plan:
            graphs[plan] = found
        else:
            same[plan] = first
    graphs[AGAIN] = graphs[ORIGINAL]
    times = {}
    for executor in EXECUTORS:
        lowered = [source.lower(each, executor) for each in graphs.values()]
        seconds = ROUND_S * len(lowered)
        rounds = [run_times(lowered, source.inputs, source.device, seconds) for _ in range(ROUNDS)]
        columns = zip(*rounds, strict=True)
        times[executor] = {
            plan: [us / 1e3 for us in column] for plan, column in zip(graphs, columns, strict=True)
        }
    return {"milliseconds": times, "same": same}


def ratios(found: Result, executor: str, plan: str) -> list[float]:
    """Speed-up of a plan over the original in each round; above 1 is faster.

    The original's time is the mean of its two measurements, except for "original again"; a plan that leaves
    the original unchanged has 1.
    """
    of_all = found["milliseconds"][executor]
    own = found["same"].get(plan, plan)
    if own == ORIGINAL:
        return [1.0] * len(of_all[ORIGINAL])
    firsts = np.array(of_all[ORIGINAL])
    if plan != AGAIN:
        firsts = (firsts + of_all[AGAIN]) / 2
    return (firsts / of_all[own]).tolist()


def training_of(row: str, graph: str, seed: int, scale: Scale, **given: Any) -> Run:
    """A training with the arguments of a scale."""
    usual = {"updates": scale.steps(UPDATES, LEAST), "reward": OUR_REWARD, "device": CPU}
    return training(row=row, graph=graph, seed=seed, minutes=scale.minutes, **{**usual, **given})


def trainings(row: str, scale: Scale, *graphs: str) -> Runs:
    """Trainings of a row on some graphs, or on all of the scale; by ("row", row, graph, seed)."""
    return {
        ("row", row, graph, seed): training_of(row, graph, seed, scale)
        for graph in graphs or trained_on(scale)
        for seed in range(scale.seeds)
    }


def rivals_on(scale: Scale, *graphs: str, device: str = CPU) -> Runs:
    """By ("rivals", graph)."""
    steps = scale.steps(TASO_STEPS, 100)
    return {
        ("rivals", graph): rivals(graph=graph, seed=0, taso_steps=steps, device=device)
        for graph in graphs or trained_on(scale)
    }


def latencies(scale: Scale) -> Runs:
    """By ("latency", graph), with all runs they need; the plans of both rows are measured alternately."""
    every = {**trainings("mf", scale), **trainings("wm", scale), **rivals_on(scale)}
    for graph in trained_on(scale):
        own = {f"{key[1]} {key[3]}": run for key, run in every.items() if key[0] == "row" and key[2] == graph}
        every["latency", graph] = latency(
            every["rivals", graph], *own.values(), graph=graph, names=tuple(own)
        )
    return every


def on_gpu(scale: Scale) -> Runs:
    """On the toy BERT with typical GPU prices as rewards; by (`GPU`, ...)."""
    graph = bert(scale)
    found: dict[Any, Run] = {(GPU, "rivals", graph): rivals_on(scale, graph, device=GPU)["rivals", graph]}
    for row, seed in itertools.product(TITLES, range(scale.seeds)):
        found[GPU, "row", row, graph, seed] = training_of(row, graph, seed, scale, device=GPU)
    return found


def by_reward(scale: Scale) -> Runs:
    """Trainings of MF on the toy BERT by (reward, seed): the named ones, then the rest of the grid."""
    updates = scale.steps(REWARD_UPDATES, LEAST)
    return {
        ("reward", name, seed): training_of("mf", bert(scale), seed, scale, updates=updates, reward=name)
        for name in dict.fromkeys((*REWARDS, *map(reward_at, ALPHAS)))
        for seed in range(scale.seeds)
    }


def reward_at(alpha: float) -> str:
    """Name of the reward at a point of the grid."""
    return NAMED.get(alpha, f"alpha{alpha}")


def by_temperature(scale: Scale) -> Runs:
    """By (temperature, seed); each in the world model of the training with that seed."""
    updates = scale.steps(DREAM_UPDATES, LEAST)
    return {
        ("temperature", temperature, base_key[3]): dreamt(
            base, temperature=temperature, updates=updates, base=base.given
        )
        for temperature in TEMPERATURES
        for base_key, base in trainings("wm", scale, bert(scale)).items()
    }


def updates_made(results: Iterable[Result]) -> str:
    """The actual number of updates of trainings; the time limit may have ended them early."""
    made = [int(max(each["log"]["update"], default=0)) for each in results]
    return f"{min(made)}" if min(made) == max(made) else f"{min(made)} to {max(made)}"
