"""Alternative plans for when the cost model may be wrong: candidates worth measuring.

Each is a greedy plan under one changed assumption: a substitution that the plan uses is excluded, or the
device model is perturbed, for example with costlier launches or faster memory. Such plans decide differently
at all locations of a kind at once, as a real machine would; plans that differ at random locations differ by
less than can be measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torchrlopt import _C
from torchrlopt.machine.cost import MachineProfile
from torchrlopt.options import SearchOptions
from torchrlopt.plan import search
from torchrlopt.plan.search import Plan
from torchrlopt.substitutions.load import subset_of

# Numbers of a `DeviceModel` with the factors by which each may be off, and its boolean abilities.
_RATES: Mapping[str, tuple[float, ...]] = {
    "contraction_launch_us": (4, 16),
    "launch_us": (4, 16, 1 / 4),
    "view_us": (16, 1 / 16),
    "step_us": (4, 1 / 4),
    "group_us": (1 / 4,),
    "padding_us": (2, 1 / 4),
    "cut_us": (2, 1 / 4),
    "cache_bytes_per_us": (1 / 8, 8),
    "flops_per_us": (4, 16, 1 / 4),
    "unpacked_factor": (1.5, 0.5),
    "transcendental_factor": (4, 1 / 4),
    "pool_factor": (0.25, 4),
    "attention_factor": (0.5, 2),
}
_ABILITIES = ("fuses_epilogues", "fuses_elementwise", "views_are_free", "copies_cuts")

_LEAST_CHANGE = 0.01
"""Timing cannot distinguish graphs whose differing nodes take a smaller fraction of the time."""


@dataclasses.dataclass(frozen=True)
class Belief:
    """A changed assumption about the cost model.

    Either a substitution is excluded, or a number of the `DeviceModel` has a factor, or one of its abilities
    is inverted.
    """

    without: str = ""
    name: str = ""
    factor: float = 1.0

    def device_model(self, profile: MachineProfile) -> _C.DeviceModel:
        """The device model under this assumption."""
        model = profile.device_model()
        if self.name in _ABILITIES:
            setattr(model, self.name, not getattr(model, self.name))
        elif self.name:
            setattr(model, self.name, getattr(model, self.name) * self.factor)
        return model

    def __str__(self) -> str:
        if self.without:
            return f"without {self.without}"
        return f"{self.name} otherwise" if self.name in _ABILITIES else f"{self.name} x {self.factor:g}"


def beliefs(names: Sequence[str], model: _C.DeviceModel) -> list[Belief]:
    """Return beliefs without each of these substitutions, and with each number and ability changed.

    Numbers that are zero in the device model are not changed.
    """
    rates = [(name, factors) for name, factors in _RATES.items() if getattr(model, name) != 0]
    return [
        *(Belief(without=name) for name in names),
        *(Belief(name=name) for name in _ABILITIES),
        *(Belief(name=name, factor=factor) for name, factors in rates for factor in factors),
    ]


@dataclasses.dataclass(frozen=True)
class Alternative:
    """A plan with the graph that it produces.

    The costs of the plan are by the unchanged cost model.
    """

    belief: Belief
    plan: Plan
    graph: _C.Graph


def alternatives(
    graph: _C.Graph,
    library: _C.Library,
    profile: MachineProfile,
    sizes: Mapping[str, int],
    options: SearchOptions,
    plan: Plan,
) -> Iterator[Alternative]:
    """Lazily yield plans whose graphs differ from that of `plan` and from each other."""
    cost = profile.cost_model(sizes)
    greedy = options.with_searcher("greedy")
    used = list(dict.fromkeys(name for name, _ in plan.steps))
    seen = {search.replay(graph, library, plan).hash()}
    for belief in beliefs(used, profile.device_model()):
        own = library
        if belief.without:
            own = subset_of(library, [name for name in library.names if name != belief.without])
        model = _C.CostModel(belief.device_model(profile), {}, profile.factors(), dict(sizes))
        found = search.search(graph, own, model, greedy)
        reached, before_ms, costs_ms = search.follow(graph, library, cost, found.steps)
        if reached.hash() not in seen:
            seen.add(reached.hash())
            found = dataclasses.replace(
                found, library_hash=library.hash, cost_before_ms=before_ms, costs_ms=costs_ms, curve=()
            )
            yield Alternative(belief, found, reached)


def worth_measuring(
    found: Iterable[Alternative], kept: _C.Graph, cost: _C.CostModel, count: int
) -> list[Alternative]:
    """The cheapest alternatives that differ measurably from each other and from the current graph."""
    chosen: list[Alternative] = []
    known = [_Spent.of(kept, cost)]
    for each in sorted(found, key=lambda each: each.plan.cost_after_ms):
        if len(chosen) == count:
            break
        spent = _Spent.of(each.graph, cost)
        if all(spent.distance(other) >= _LEAST_CHANGE for other in known):
            chosen.append(each)
            known.append(spent)
    return chosen


@dataclasses.dataclass(frozen=True)
class _Spent:
    """Predicted time of a graph by node."""

    us: Mapping[int, float]
    total_us: float

    @classmethod
    def of(cls, graph: _C.Graph, cost: _C.CostModel) -> _Spent:
        us: dict[int, float] = {}
        for node in graph.topological_order():
            time_us = float(cost.node(graph, node)["time_us"])
            if time_us > 0:
                own, _ = cost.keys(graph, node)
                us[own] = us.get(own, 0.0) + time_us
        return cls(us, sum(us.values()))

    def distance(self, other: _Spent) -> float:
        """Return the fraction of the time spent in nodes that differ between the graphs."""
        if self.total_us == 0 or other.total_us == 0:
            return float(self.total_us != other.total_us)
        keys = self.us.keys() | other.us.keys()
        differing = sum(abs(self.us.get(key, 0.0) - other.us.get(key, 0.0)) for key in keys)
        return differing / max(self.total_us, other.total_us)
