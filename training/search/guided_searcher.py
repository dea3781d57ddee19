"""Beam search guided by a network that rates candidates: the rows "mf", "plan" and "gumbel"."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.networks.actions import no_noise
from torchrlopt.agent.observation import Observation
from torchrlopt.agent.search.explorer import Found
from torchrlopt.agent.search.searcher import GuidedSearcher, left_steps, patience_of
from torchrlopt.machine.contention import own_time
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import Plan
from training.networks.candidate_controller import CandidateController, Guide, new_controller
from training.networks.ragged import segment_log_softmax
from training.search.guided_beam import GuidedBeam

FIRST_WIDTH = 1  # with a small budget, only a narrow search reaches the end of a long plan
MAX_WIDTH = 64
#: Weight of the predicted further improvement relative to the likelihood of the steps, alternating between
#: beams. The larger weight makes the search deviate from steps that the policy is confident but wrong about.
VALUE_WEIGHTS = (20.0, 60.0)
KAPPA = 100.0  # slope of a candidate's likelihood in its saving, the initial value of the networks


class BeamSearcher(GuidedSearcher):
    """Guided beams, each twice as wide as the previous one and from the best plan so far.

    Args:
        guide: the networks, or a replacement that rates states.
        name: searcher name recorded in plans.
        value_weights: see `VALUE_WEIGHTS`.
    """

    def __init__(
        self, guide: Guide, name: str = "agent", value_weights: Sequence[float] = VALUE_WEIGHTS
    ) -> None:
        super().__init__(name)
        self._guide = guide
        self._value_weights = tuple(value_weights)

    def explore(
        self,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: SearchOptions,
        first: Plan,
        deadline: float,
    ) -> Found:
        """See `GuidedSearcher`."""
        best = Found(first.cost_after_ms * 1000, list(first.steps))
        left, patience = left_steps(options, first), patience_of(options)
        own = dataclasses.replace(options.with_searcher("greedy"), beam_width=FIRST_WIDTH)
        weights = itertools.cycle(self._value_weights)
        while own.beam_width <= MAX_WIDTH:
            is_out = left is None or (options.budget_steps > 0 and left <= 0)
            if is_out or own_time() >= deadline or best.idle >= patience:
                best.is_exhausted = False
                break
            own = dataclasses.replace(own, budget_steps=left)
            beam = GuidedBeam(self._guide, graph, library, cost, own, next(weights))
            found = beam.run(best, deadline, patience)
            best.note(found.cost_us, found.steps)
            best.gained_at = best.expansions + found.gained_at
            best.curve.append((own_time(), best.cost_us / 1000))
            best.expansions += found.expansions
            best.candidates += found.candidates
            best.is_exhausted, best.is_cut = found.is_exhausted, found.is_cut
            if options.budget_steps > 0:
                left -= found.expansions
            if not found.is_exhausted or not found.is_cut:
                break
            own = dataclasses.replace(own, beam_width=2 * own.beam_width)
        return best


class CostGuide:
    """Rates candidates by their exact cost differences alone; see `Guide`. It predicts no further gain.

    Args:
        num_substitutions: of the library.
    """

    def __init__(self, num_substitutions: int) -> None:
        self.num_substitutions = num_substitutions

    def rate(self, states: Observation) -> tuple[Tensor, Tensor]:
        """See `Guide`."""
        count = states.num_episodes
        logits = -KAPPA * states.column("candidate", "cost_delta")
        return segment_log_softmax(logits, states.candidate_episode, count), no_noise([1] * count)


def random_control(given: CandidateController, library: _C.Library, seed: int) -> CandidateController:
    """Create networks of the same sizes with random weights.

    An untrained scorer ranks candidates like greedy, so its last layer is randomised too.
    """
    control = new_controller(library, given.config, seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in control.scorer.score[-1].parameters():
        parameter.data.normal_(std=1.0, generator=generator)
    return control.eval()
