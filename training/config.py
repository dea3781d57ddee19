"""All arguments of a training run, in one dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import shlex
from typing import Any

from torchrlopt.env import REWARDS
from torchrlopt.errors import OptionsError
from training.networks.encoders import ENCODERS
from training.samplers import SAMPLERS
from training.world.latent_controller import MODELS

#: The rows and the arguments in which each differs from the defaults of `Config`. A world model learns more
#: from two episodes of each of sixteen graphs than from eight of each of four. Tree search is expensive: its
#: eight episodes of a graph share the network calls, and six graphs take half a minute.
_DREAM: dict[str, Any] = {"encoder": "graph_network", "groups": 16, "rollouts": 2}
_SEARCHED: dict[str, Any] = {"groups": 6, "rollouts": 8}
ROWS: dict[str, dict[str, Any]] = {
    "mf": {}, "wm": _DREAM, "wm_plus": _DREAM, "plan": {}, "gumbel": _SEARCHED,
}  # fmt: skip

#: The same for runs on one graph: all episodes start from the unmodified graph and use the whole library.
ONE_GRAPH: dict[str, Any] = {
    "warm_up": 0, "primitives_share": 0.0, "original_share": 1.0, "groups": 2, "rollouts": 8,
}  # fmt: skip

#: Allowed values of the arguments that are names.
CHOICES: dict[str, tuple[str, ...]] = {
    "row": tuple(ROWS),
    "reward": tuple(REWARDS),
    "sampler": SAMPLERS,
    "encoder": tuple(ENCODERS),
}

_COUNTS = (
    "workers", "groups", "rollouts", "max_steps", "width", "rounds", "epochs", "minibatch_nodes",
    "minibatch_states", "simulations", "considered", "dream_horizon", "dream_batch", "dream_updates",
    "model_epochs", "model_batches",
)  # fmt: skip
_OF_TREE_SEARCH = ("simulations", "considered")
_SHARES = ("clip", "gae_lambda", "discount", "primitives_share", "original_share")
#: Smallest and largest values of the numeric arguments.
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
    """All settings of a run; stored in the run's directory and in the checkpoint.

    Attributes:
        row: "mf" learns in the real environment; "wm" and "wm_plus" learn in the imagination of the mixture
            and the discrete world model; "plan" imitates the best of many sampled episodes; "gumbel" imitates
            what a tree search recommends (Gumbel AlphaZero).
        seed: of all random numbers.
        graph: the graph of all episodes, a model of the suite or an ONNX file; if empty, graphs of the
            curriculum.
        updates: optimiser phases; `minutes` may end the run earlier.
        minutes: wall-clock limit, 0 for none.
        workers: number of processes that play real episodes, 1 for this one; the data do not depend on it.
        groups: graphs per update.
        rollouts: episodes per graph, compared with each other; "gumbel" adds one shown by a teacher.
        max_steps: longest episode.
        reward: a name in `torchrlopt.env.REWARDS`; "gumbel" has the default only.
        macros: whether "wm" and "wm_plus" may also apply a substitution to a whole class of equivalent
            locations at once, as the other rows always may.
        sampler: of the graphs' free parameters, a name in `training.samplers.SAMPLERS`.
        warm_up: updates over which graphs grow from fragments to stacks.
        encoder: "local" or "graph_network".
        width: of node and graph embeddings.
        rounds: of message passing.
        learning_rate: of Adam.
        clip: of PPO's ratio.
        gae_lambda: of the advantages.
        discount: 1, because episodes are short and only their end counts.
        epochs: passes over the data of an update.
        minibatch_nodes: graph nodes per minibatch, approximately.
        minibatch_states: maximum number of states per minibatch.
        entropy_weight: of the entropy bonus; "gumbel" has none.
        value_weight: of the value's cross-entropy.
        max_gradient: norm at which gradients are clipped.
        temperature: of sampling when "plan" collects episodes for imitation.
        teacher_expansions: of the searches that show "plan" and "gumbel" an episode of each graph; 0 for
            none.
        simulations: graphs that the search of "gumbel" visits for each step; they are not counted as steps.
        considered: actions that it considers at the root, drawn without replacement.
        primitives_share: share of the graphs that "mf", "plan" and "gumbel" rewrite without the composites of
            the library.
        original_share: share of the episodes that start from the unmodified graph; the rest start after a
            prefix of a good trajectory or after a random walk, in equal parts.
        dream_horizon: steps of an imagined episode.
        dream_batch: imagined episodes per update.
        dream_updates: updates of the controller in imagination for each phase of real data.
        temperature_dream: of the world model.
        doubt_penalty: subtracted from imagined rewards per unit of ensemble disagreement.
        model_epochs: passes over the replay when the world model is fitted.
        model_batches: maximum number of minibatches per fit, so that rounds do not get slower as the replay
            grows.

    Raises:
        OptionsError: the row, reward, sampler or encoder is unknown, a number is out of range,
            macros are requested for a row without a world model, or "gumbel" is combined with another reward
            or considers more actions than it has simulations.
    """

    row: str = "plan"
    seed: int = 0
    graph: str = ""
    updates: int = 1000
    minutes: float = 0.0
    workers: int = 1
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
        """Complete the given arguments with the defaults of the row and, for runs on one graph, `ONE_GRAPH`.

        Raises:
            OptionsError: see `Config`.
        """
        of_graph = ONE_GRAPH if given.get("graph") else {}
        return cls(row=row, **{**ROWS.get(row, {}), **of_graph, **given})

    def to_json(self) -> str:
        """Serialise to JSON; `from_json` restores an equal configuration."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)

    def settings(self) -> str:
        """Text that distinguishes runs.

        Leaves out switches that are off and arguments that only other rows read, as if they did not exist.
        """
        unread = () if self.row == "gumbel" else _OF_TREE_SEARCH
        given = dataclasses.asdict(self).items()
        told = {name: value for name, value in given if value is not False and name not in unread}
        return json.dumps(told, indent=2, sort_keys=True)

    def command(self) -> str:
        """The command line of a run with these arguments; those with the row's default value are left out."""
        usual = dataclasses.asdict(Config.of_row(self.row, **({"graph": self.graph} if self.graph else {})))
        other = {name: value for name, value in dataclasses.asdict(self).items() if value != usual[name]}
        if self.graph:
            other["graph"] = self.graph
        given = " ".join(_option(name, other[name]) for name in sorted(other))
        return f"python -m training.train --row {self.row} {given}".rstrip()

    def check_same_run(self, stored: Config) -> None:
        """Refuse to continue a run with different arguments.

        Raises:
            OptionsError: an argument differs other than the length of the run and its number of workers.
        """
        free = ("updates", "minutes", "workers")
        mine, its = dataclasses.asdict(self), dataclasses.asdict(stored)
        changed = [name for name in mine if mine[name] != its[name] and name not in free]
        if changed:
            told = ", ".join(f"{name} {its[name]!r}" for name in changed)
            raise OptionsError(
                f"the run has another {', '.join(changed)}", expected=told, todo="begin a new one"
            )

    @classmethod
    def from_json(cls, text: str) -> Config:
        """The inverse of `to_json`. Raises TypeError for an unknown argument."""
        return cls(**json.loads(text))


def _option(name: str, value: Any) -> str:
    """An argument in command-line form."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option} {shlex.quote(str(value))}"


def meanings() -> dict[str, str]:
    """The description of each argument, from the docstring of `Config`."""
    told = (inspect.getdoc(Config) or "").partition("Attributes:\n")[2].partition("\nRaises:")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", told, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
