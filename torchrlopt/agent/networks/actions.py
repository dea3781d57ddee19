"""What a policy can do in a state, and how its actions correspond to the core's candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchrlopt.agent.observation import Observation

MAX_LOCATIONS = 200
#: Rewards depend on these two, but an embedding need not preserve them exactly. So they are passed to the
#: memory unchanged, as the last two features.
KEPT_GLOBALS = ("cost", "best_cost")

#: Returns Gumbel noise for consecutive groups of these sizes, [sum of sizes]. Zeros select the likeliest
#: action.
Draw = Callable[[Sequence[int]], Tensor]


def no_noise(sizes: Sequence[int]) -> Tensor:
    """A `Draw` for the likeliest action."""
    return torch.zeros(sum(sizes), dtype=torch.float32)


def squashed(saving: Tensor) -> Tensor:
    """Signed square root: most steps save a thousandth of the initial cost, some a third."""
    return saving.sign() * saving.abs().sqrt()


@dataclasses.dataclass(frozen=True)
class Legal:
    """Legal actions in real or imagined states, with any leading dimensions.

    Attributes:
        mask: [..., S + 1], bool: legal substitutions, stop last.
        num_locations: [..., S], number of legal locations of each, at most `MAX_LOCATIONS`.
        savings: [..., S], mean saving of each over its locations, `squashed`. For illegal substitutions it is
            0 in real states and the model's prediction in imagined states.
    """

    mask: Tensor
    num_locations: Tensor
    savings: Tensor

    def at(self, index: Any) -> Legal:
        """Select some of the states."""
        return Legal(self.mask[index], self.num_locations[index], self.savings[index])

    def saving_of(self, actions: Tensor) -> Tensor:
        """Return the savings [...] of the substitutions of actions [..., 2]; 0 for stop."""
        with_stop = F.pad(self.savings, (0, 1))
        return with_stop.gather(-1, actions[..., :1]).squeeze(-1)


@dataclasses.dataclass(frozen=True)
class LatentState:
    """The observation of a policy for B episodes, real or imagined.

    Attributes:
        features: [B, F], latent, output of the memory and summary of what is legal, concatenated.
        legal: legal actions of the [B] states.
    """

    features: Tensor
    legal: Legal


def kinds_of(rules: Tensor, has_macros: bool) -> Tensor:
    """Return embeddings of all kinds of steps except stop, from those of the substitutions, [S, D].

    With macros, [2 S, D + 1]: each substitution at one location, then each at a class of locations. The last
    column distinguishes them.
    """
    if not has_macros:
        return rules
    one = rules.new_full((len(rules), 1), -1.0)
    return torch.cat([torch.cat([rules, one], 1), torch.cat([rules, -one], 1)])


class Choices:
    """Translates between the core's candidates and a policy's actions, for B episodes.

    The core numbers the candidates of an episode. The policy returns (substitution, rank): the rank indexes
    the locations of the substitution in the order of the candidates. With macros, a class of locations counts
    as one location of a separate substitution, see `kinds_of`.

    Args:
        seen: the episodes.
        num_substitutions: S, number of substitutions known to the policy; 2 S with macros.
        has_macros: whether the environment offers them.
        rows: [S'], index of each substitution of the environment's library among them, -1 if unknown; None if
            both are identical.

    Attributes:
        legal: legal actions of the [B] states.
    """

    def __init__(
        self,
        seen: Observation,
        num_substitutions: int,
        has_macros: bool = False,
        rows: Tensor | None = None,
    ) -> None:
        batch = seen.num_episodes
        known = seen.substitutions if rows is None else rows[seen.substitutions]
        if has_macros:
            at_once = (seen.column("candidate", "is_macro") > 0) & (known >= 0)
            known = known + at_once * (num_substitutions // 2)
        kept = torch.nonzero(known >= 0).squeeze(1)
        flat = seen.candidate_episode[kept] * num_substitutions + known[kept]
        # Candidates sorted by episode, then substitution; `_firsts` is the first row of each substitution.
        self._order = kept[flat.argsort(stable=True)]
        counts = torch.bincount(flat, minlength=batch * num_substitutions)
        self._firsts = (counts.cumsum(0) - counts).view(batch, num_substitutions)
        counts = counts.view(batch, num_substitutions)
        self._seen = seen
        delta = seen.column("candidate", "cost_delta")
        self._savings = squashed(-delta)
        sums = delta.new_zeros(batch * num_substitutions).index_add(0, flat, -delta[kept])
        savings = squashed(sums.view_as(counts) / counts.clamp(min=1))
        mask = F.pad(counts > 0, (0, 1), value=True)
        self.legal = Legal(mask, counts.clamp(max=MAX_LOCATIONS), savings)

    def rows_of(self, actions: Tensor) -> Tensor:
        """Convert legal actions [B, 2] to the core's actions [B]."""
        seen, last = self._seen, self._firsts.shape[1]
        is_stop = actions[:, 0] == last
        if len(self._order) == 0:
            return seen.counts
        substitution = actions[:, :1].clamp(max=last - 1)
        place = self._firsts.gather(1, substitution).squeeze(1) + actions[:, 1]
        rows = self._order[place.clamp(max=len(self._order) - 1)] - seen.candidate_offsets[:-1]
        return torch.where(is_stop, seen.counts, rows)

    def savings_of(self, rows: Tensor) -> Tensor:
        """Return the savings of the core's actions [B], squashed; 0 for stop."""
        places = self._seen.candidate_offsets[:-1] + rows
        return torch.where(rows == self._seen.counts, 0.0, F.pad(self._savings, (0, 1))[places])
