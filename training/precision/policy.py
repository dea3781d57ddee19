"""The row without a model: PPO over the moves of `PrecisionEnv`, first on other graphs, then on its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from torchrlopt.agent.networks.actions import Draw
from torchrlopt.agent.networks.encoder import mlp
from training.config import Config
from training.learning import ppo
from training.networks.candidate_controller import Decision
from training.networks.value_head import ValueHead
from training.precision.answers import RUNGS, MeasuredGraph
from training.precision.env import PrecisionEnv
from training.precision.questions import Questions, Row, SpentError
from training.random_keys import gumbel
from training.rollout import Rollout, RolloutBuilder

States = tuple[Tensor, Tensor]
"""Observations [B, M, F], and which actions change anything, bool [B, 4 M]; M is the largest."""

_EPISODES, _STEPS = 4, 8  # of a rollout: few hundred answers are ten updates
_CONFIG = Config(row="mf", learning_rate=1e-3, epochs=4, entropy_weight=0.01)
_WIDTH = 48


class MovePolicy(nn.Module):
    """Scores each rung of each move by features of the move and the mean over all moves.

    Args:
        num_features: F, of a move.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(num_features, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, _WIDTH))
        self.score = mlp(2 * _WIDTH, _WIDTH, len(RUNGS))
        self.value = ValueHead(_WIDTH, _WIDTH)

    def collate(self, states: Sequence[tuple[Tensor, Tensor]]) -> States:
        """See `Policy`; smaller graphs get moves that change nothing."""
        observations, changes = zip(*states, strict=True)
        return pad_sequence(list(observations), batch_first=True), pad_sequence(
            list(changes), batch_first=True
        )

    def pick(self, states: States, rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """See `Policy`."""
        return [(states[0][row], states[1][row]) for row in rows]

    def size(self, state: tuple[Tensor, Tensor]) -> int:
        """See `Policy`."""
        return len(state[0])

    def forward(self, states: States) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [B, 4 M] and logits of the value [B, K]."""
        observations, changes = states
        moves = self.first(observations)
        is_move = changes.unflatten(1, (-1, len(RUNGS))).any(2, keepdim=True)
        whole = (moves * is_move).sum(1) / is_move.sum(1)
        logits = self.score(torch.cat([moves, whole[:, None].expand_as(moves)], 2)).flatten(1)
        return logits.masked_fill(~changes, -1e9).log_softmax(1), self.value(whole)

    def act(self, states: States, draw: Draw) -> tuple[Tensor, Decision]:
        """See `Policy`."""
        log_probs, _ = told = self(states)
        noise = draw([log_probs.shape[1]] * len(log_probs)).view_as(log_probs)
        actions = (log_probs + noise).argmax(1)
        return actions, self._decision(*told, actions)

    def evaluate(self, states: States, actions: Tensor) -> Decision:
        """See `Policy`."""
        return self._decision(*self(states), actions)

    def _decision(self, log_probs: Tensor, value_logits: Tensor, actions: Tensor) -> Decision:
        entropy = -(log_probs.exp() * log_probs).sum(1)
        log_prob = log_probs.gather(1, actions[:, None])[:, 0]
        return Decision(log_prob, entropy, self.value.mean(value_logits), value_logits)


class PolicyRow:
    """PPO that has learned on other graphs.

    Args:
        graphs: those.
        most: questions about each of them.
        budget: largest error that counts.
        seed: of weights, actions and minibatches.
    """

    def __init__(self, graphs: Sequence[MeasuredGraph], most: int, budget: float, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape = PrecisionEnv(graphs[0]).observation_space.shape
            self._policy = MovePolicy(shape[-1] if shape else 0)
        self._optimiser = torch.optim.Adam(self._policy.parameters(), _CONFIG.learning_rate)
        self._generator = torch.Generator().manual_seed(seed)
        questions = [Questions(graph, most, budget) for graph in graphs]
        while questions:
            found = []
            for ask in tuple(questions):
                try:
                    found.append(self._played(ask))
                except SpentError:
                    questions.remove(ask)
            self._learn(found)
        self._state = {name: value.clone() for name, value in self._policy.state_dict().items()}

    def row(self) -> Row:
        """A row that continues to learn on its graph, from the weights that other graphs gave."""

        def play(ask: Questions, random: np.random.Generator) -> None:
            self._policy.load_state_dict(self._state)
            self._optimiser = torch.optim.Adam(self._policy.parameters(), _CONFIG.learning_rate)
            self._random = random
            self._generator.manual_seed(int(random.integers(2**31)))  # whatever graphs came before
            while True:
                self._learn([self._played(ask)])

        return play

    def _learn(self, rollouts: Sequence[Rollout]) -> None:
        if rollouts:
            ppo.update(self._policy, self._optimiser, rollouts, _CONFIG, self._generator)

    def _played(self, ask: Questions) -> Rollout:
        """Episodes on one graph; every other one begins with the best that is known."""
        envs = [PrecisionEnv(ask.graph, ask, ask.budget, _STEPS) for _ in range(_EPISODES)]
        told = [
            env.reset(options={"rungs": ask.best} if place % 2 else None) for place, env in enumerate(envs)
        ]
        builder = RolloutBuilder(len(envs))
        for step in range(_STEPS):
            states = self._states(told)
            with torch.no_grad():
                actions, decision = self._policy.act(states, gumbel([self._random] * len(envs)))
            results = [env.step(np.int64(action)) for env, action in zip(envs, actions.tolist(), strict=True)]
            told = [(each[0], each[4]) for each in results]
            ended = torch.full((len(envs),), step == _STEPS - 1)
            rewards = torch.tensor([each[1] for each in results])
            builder.add(states, actions, decision.log_prob, decision.value, rewards, ended, ended)
        with torch.no_grad():
            _, decision = self._policy.act(self._states(told), gumbel([self._random] * len(envs)))
        return builder.finish(decision.value)

    def _states(self, told: Sequence[tuple[np.ndarray, dict[str, np.ndarray]]]) -> States:
        return self._policy.collate(
            [(torch.from_numpy(seen), torch.from_numpy(info["changes"])) for seen, info in told]
        )
