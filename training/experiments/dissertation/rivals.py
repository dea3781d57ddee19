"""What needs no training: greedy and TASO's search, random play, and the agent of the package."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torchrlopt import searcher_table
from torchrlopt.agent import catalogue
from torchrlopt.options import Options
from torchrlopt.substitutions import load_library
from training.device.prices import cost_of
from training.experiments.dissertation.evaluation import (
    DRAWN,
    Played,
    Steps,
    UniformCandidates,
    gain_of,
    played,
)
from training.experiments.dissertation.row_run import (
    CPU,
    EXECUTOR,
    SETTINGS,
    config_of,
    played_of,
    prices_on,
)
from training.experiments.dissertation.subjects import graph_of
from training.experiments.runs import Run

#: TASO's budget in the dissertation, its alpha, and the expansions of the agent.
TASO_STEPS, TASO_ALPHA, AGENT_STEPS = 50_000, 1.05, 2_000
NO_LIMIT_MS = 600_000.0  # expansions are what ends a search


def random_of(row: str) -> str:
    """Name of the plan of random play with the steps that a row may take."""
    return f"random {row}"


@dataclasses.dataclass(frozen=True)
class RivalsOutcome:
    """What a run leaves.

    Attributes:
        plans: steps by searcher.
        gains: share of the first predicted time that each plan saves.
        random: play at random, as many episodes as a trained policy has, with the steps that the row may
            take; by row.
    """

    plans: dict[str, Steps]
    gains: dict[str, float]
    random: dict[str, Played]


@dataclasses.dataclass(frozen=True)
class RivalsRun(Run[RivalsOutcome]):
    """See `Run`.

    Attributes:
        graph: a name in `subjects`.
        seed: of random play.
        taso_steps: most expansions of TASO's search.
        device: type of the device whose typical prices all of them go by.
    """

    graph: str
    seed: int
    taso_steps: int
    device: str = CPU

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"rivals-{self.graph}-taso{self.taso_steps}-seed{self.seed}-{self.device}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        agent = catalogue.digest(Options(searcher="agent"))
        told = f"{load_library().hash} {agent} {AGENT_STEPS} {TASO_ALPHA} {SETTINGS}"
        return f"{told} {prices_on(self.device).to_json()} {DRAWN} drawn and one more"

    def make(self, tell: Callable[[], None]) -> RivalsOutcome:
        """See `Run`."""
        graph, library = graph_of(self.graph), load_library()
        cost = cost_of(prices_on(self.device))
        plans: dict[str, Steps] = {}
        for name, steps in (("greedy", 0), ("taso", self.taso_steps), ("agent", AGENT_STEPS)):
            options = Options.from_dict(
                {
                    "searcher": name,
                    "executor": EXECUTOR,
                    "alpha": TASO_ALPHA,
                    "budget_ms": NO_LIMIT_MS,
                    "budget_steps": steps,
                    "on_error": "raise",  # another searcher's plan is not the agent's
                }
            )
            searcher = searcher_table.module_of(name).make_searcher(options, library)
            plans[name] = list(searcher.search(graph, library, cost, options).steps)
        configs = {row: config_of(row, self.graph, seed=self.seed) for row in SETTINGS}
        random = {
            row: played(graph, cost, [UniformCandidates(row == "mf" or config.macros)] * 2, config)[0]
            for row, config in configs.items()
        }
        tell()
        gains = {name: gain_of(graph, cost, steps) for name, steps in plans.items()}
        return RivalsOutcome(plans, gains, random)

    def read(self, kept: Mapping[str, Any]) -> RivalsOutcome:
        """See `Run`."""
        plans = {name: [(step, at) for step, at in steps] for name, steps in kept["plans"].items()}
        random = {row: played_of(each) for row, each in kept["random"].items()}
        return RivalsOutcome(plans, kept["gains"], random)
