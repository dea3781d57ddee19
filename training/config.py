"""All arguments of a training run, one dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import shlex
from typing import Any

from torchrlopt.agent.networks.encoder import ENCODERS
from torchrlopt.agent.world.latent_controller import MODELS
from torchrlopt.env import REWARDS
from torchrlopt.errors import OptionsError
from training.collectors.collector import KINDS
from training.samplers import SAMPLERS

#: The rows, each with the arguments that are other than the defaults of `Config` there. A world model learns
#: more from two episodes of each of sixteen graphs than from eight of each of four. A tree search is dear:
#: its eight episodes of a graph share the calls of the network, and six graphs take half a minute.
_DREAM: dict[str, Any] = {"encoder": "graph_network", "groups": 16, "rollouts": 2}
_SEARCHED: dict[str, Any] = {"groups": 6, "rollouts": 8}
ROWS: dict[str, dict[str, Any]] = {
    "mf": {}, "wm": _DREAM, "wm_plus": _DREAM, "plan": {}, "gumbel": _SEARCHED,
}  # fmt: skip

#: The same for runs on one graph: all episodes begin at the graph itself, and have the whole library.
ONE_GRAPH: dict[str, Any] = {
    "warm_up": 0, "primitives_share": 0.0, "original_share": 1.0, "groups": 2, "rollouts": 8,
}  # fmt: skip

#: What may be chosen, for arguments that are names.
CHOICES: dict[str, tuple[str, ...]] = {
    "row": tuple(ROWS),
    "reward": tuple(REWARDS),
    "sampler": SAMPLERS,
    "encoder": tuple(ENCODERS),
    "collector": KINDS,
}

_COUNTS = (
    "workers", "groups", "rollouts", "max_steps", "width", "rounds", "epochs", "minibatch_nodes",
    "minibatch_states", "simulations", "considered", "dream_horizon", "dream_batch", "dream_updates",
    "model_epochs", "model_batches",
)  # fmt: skip
_OF_TREE_SEARCH = ("simulations", "considered")
_SHARES = ("clip", "gae_lambda", "discount", "primitives_share", "original_share")
#: Least and largest values of the arguments that are numbers.
RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "updates": (0, math.inf),
    "minutes": (0, math.inf),
    "warm_up": (0, math.inf),
    "learning_rate": (0, 1),
    "temperature": (0, math.inf),
    "temperature_dream": (0, math.inf),
    "teacher_expansions": (0, math.inf),
    **dict.fromkeys(_COUNTS, (1, math.inf)),
    **dict.fromkeys(_SHARES, (0, 1)),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """What a run depends on; stored in the run's directory and in the checkpoint.

    Attributes:
        row: "mf" learns in the real environment, "wm" and "wm_plus" in the imagination of the mixture and of
            the discrete world model, "plan" imitates the best of many sampled episodes, "gumbel" what a tree
            search recommends (Gumbel AlphaZero).
        seed: of everything that is drawn.
        graph: the one that all episodes are played on, a model of the suite or an ONNX file; if empty, graphs
            of the curriculum.
        updates: optimiser phases; the run may end earlier by `minutes`.
        minutes: wall-clock limit, 0 for none.
        workers: that play the real episodes; the data depend neither on their number nor on their kind.
        collector: kind of the workers; "auto" is this process for one, and processes for more.
        ray: address of the cluster that the workers of "ray" run on; if empty, a Ray is begun here for them.
        groups: graphs per update.
        rollouts: episodes per graph, compared with each other; "gumbel" has one more with a teacher.
        max_steps: of an episode.
        reward: a name in `torchrlopt.env.REWARDS`; "gumbel" has the default only.
        macros: whether "wm" and "wm_plus" may take a whole class of like places at once too, as the
            others always may.
        sampler: of the graphs' free parameters, a name in `training.samplers.SAMPLERS`.
        warm_up: updates over which graphs grow from fragments to stacks.
        encoder: "local" or "graph_network".
        width: of node and graph embeddings.
        rounds: of message passing.
        learning_rate: of Adam.
        clip: of PPO's ratio.
        gae_lambda: of the advantages.
        discount: 1, since episodes are short and what counts is their end.
        epochs: passes over the data of an update.
        minibatch_nodes: graph nodes per minibatch, about.
        minibatch_states: most states per minibatch.
        entropy_weight: of the bonus; "gumbel" has none.
        value_weight: of the value's cross-entropy.
        max_gradient: norm at which gradients are cut.
        temperature: of sampling when "plan" collects episodes for imitation.
        teacher_expansions: of the searches that show "plan" and "gumbel" an episode of each graph; 0 for
            none.
        simulations: graphs that the search of "gumbel" visits for each step; they are not counted as steps.
        considered: steps that it tries in the graph where it begins, drawn without replacement.
        primitives_share: of the graphs that are rewritten without the composites of the library, by "mf",
            "plan" and "gumbel".
        original_share: of episodes that begin at the graph itself; the rest begin after a prefix of a good
            trajectory or a random walk, in equal parts.
        dream_horizon: steps of an imagined episode.
        dream_batch: imagined episodes per update.
        dream_updates: updates of the controller in imagination for each phase of real data.
        temperature_dream: of the world model.
        doubt_penalty: taken off imagined rewards per unit of the ensemble's disagreement.
        model_epochs: passes over the replay when the world model is fitted.
        model_batches: most minibatches of that, so that a round does not take longer the more is recorded.

    Raises:
        OptionsError: there is no row, reward, sampler, encoder or collector of that name, a number is
            out of its range, macros are asked of a row without a world model, or "gumbel" is asked for
            another reward or to consider more steps than it has simulations.
    """

    row: str = "plan"
    seed: int = 0
    graph: str = ""
    updates: int = 1000
    minutes: float = 0.0
    workers: int = 1
    collector: str = "auto"
    ray: str = ""
    groups: int = 4
    rollouts: int = 8
    max_steps: int = 30
    reward: str = "best_so_far"
    macros: bool = False
    sampler: str = "random"
    warm_up: int = 100
    encoder: str = "local"
    width: int = 48
    rounds: int = 4
    learning_rate: float = 3e-4
    clip: float = 0.2
    gae_lambda: float = 0.95
    discount: float = 1.0
    epochs: int = 2
    minibatch_nodes: int = 8000
    minibatch_states: int = 512
    entropy_weight: float = 0.003
    value_weight: float = 0.25
    max_gradient: float = 0.5
    temperature: float = 1.0
    teacher_expansions: int = 500
    simulations: int = 32
    considered: int = 16
    primitives_share: float = 0.5
    original_share: float = 0.5
    dream_horizon: int = 15
    dream_batch: int = 256
    dream_updates: int = 10
    temperature_dream: float = 1.0
    doubt_penalty: float = 0.1
    model_epochs: int = 20
    model_batches: int = 400

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise OptionsError(
                    f"there is no such {name}",
                    expected=f"one of {', '.join(choices)}",
                    got=getattr(self, name),
                )
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise OptionsError(f"{name} is out of range", expected=f"{least:g} to {most:g}", got=value)
        if self.macros and self.row not in MODELS:
            raise OptionsError(
                "macros are for rows with a world model; the others have them",
                expected=f"a row of {', '.join(MODELS)}",
                got=self.row,
            )
        if self.row == "gumbel":
            if self.reward != Config.reward:
                raise OptionsError(
                    "a tree search adds up gains", expected=f"reward {Config.reward}", got=self.reward
                )
            if self.considered > self.simulations:
                raise OptionsError(
                    "each step that is considered takes a simulation",
                    expected=f"considered at most {self.simulations}",
                    got=self.considered,
                )

    @classmethod
    def of_row(cls, row: str = "plan", **given: Any) -> Config:
        """The arguments given, and for the others what suits the row, and the graph where there is one.

        Raises:
            OptionsError: see `Config`.
        """
        of_graph = ONE_GRAPH if given.get("graph") else {}
        return cls(row=row, **{**ROWS.get(row, {}), **of_graph, **given})

    def to_json(self) -> str:
        """Text from which `from_json` makes an equal configuration."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)

    def settings(self) -> str:
        """Text that tells runs apart.

        A switch that is off is no part of it, nor what other rows do not read, as if there were none yet.
        """
        unread = () if self.row == "gumbel" else _OF_TREE_SEARCH
        given = dataclasses.asdict(self).items()
        told = {name: value for name, value in given if value is not False and name not in unread}
        return json.dumps(told, indent=2, sort_keys=True)

    def command(self) -> str:
        """What makes a run with these arguments: all that are other than the row's own, by name."""
        usual = dataclasses.asdict(Config.of_row(self.row, **({"graph": self.graph} if self.graph else {})))
        other = {name: value for name, value in dataclasses.asdict(self).items() if value != usual[name]}
        if self.graph:
            other["graph"] = self.graph
        given = " ".join(_option(name, other[name]) for name in sorted(other))
        return f"python -m training.train --row {self.row} {given}".rstrip()

    def check_same_run(self, stored: Config) -> None:
        """Refuse to continue a run with other arguments than its own.

        Raises:
            OptionsError: an argument differs that is not just how long or by how many the run is done.
        """
        free = ("updates", "minutes", "workers", "collector", "ray")
        mine, its = dataclasses.asdict(self), dataclasses.asdict(stored)
        changed = [name for name in mine if mine[name] != its[name] and name not in free]
        if changed:
            told = ", ".join(f"{name} {its[name]!r}" for name in changed)
            raise OptionsError(
                f"the run has another {', '.join(changed)}", expected=told, todo="begin a new one"
            )

    @classmethod
    def from_json(cls, text: str) -> Config:
        """The inverse of `to_json`; TypeError for an unknown argument."""
        return cls(**json.loads(text))


def _option(name: str, value: Any) -> str:
    """An argument as the command line takes it."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option} {shlex.quote(str(value))}"


def meanings() -> dict[str, str]:
    """What the docstring of `Config` says of each argument."""
    told = (inspect.getdoc(Config) or "").partition("Attributes:\n")[2].partition("\nRaises:")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", told, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
