"""Planning: looks a plan up in the store by content, or searches for one and stores its measurements."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrlopt import _C, executor_table, searcher_table
from torchrlopt.errors import SearchError
from torchrlopt.executors import registry
from torchrlopt.judge import stored
from torchrlopt.judge.graph_check import Verified
from torchrlopt.judge.policy import Policy
from torchrlopt.machine import device
from torchrlopt.machine.cost import MachineProfile, machine_profile
from torchrlopt.onnx.program import Program
from torchrlopt.options import MAX_BUDGET_MS, Options, SearchOptions
from torchrlopt.plan import search
from torchrlopt.plan.record import PlanRecord, priced, proof_of
from torchrlopt.plan.store import PlanStore, make_key
from torchrlopt.report import ReportStep, SearchRecord, Source, Timing
from torchrlopt.storage.directory import default_directory
from torchrlopt.storage.plan_file import SavedPlan
from torchrlopt.substitutions import library_without

logger = logging.getLogger("torchrlopt")

#: The time budget grows in proportion above this size: in 300 ms, greedy search applied a third of the merges
#: that a graph of 7,000 operators offers.
OPERATORS_OF_BUDGET = 1500
PLAN_FORMAT = 8  # bump when the meaning of a stored plan or the typical prices change


@dataclasses.dataclass(frozen=True)
class Subject:
    """The subject of planning: a graph and its context.

    Attributes:
        program: the graph.
        device: device of its tensors.
        sizes: example sizes of the graph's symbols.
        content: key of the parts of the program that the graph does not describe: strides, operators unknown
            to the core, constants. Measurements and checks are valid for one content only.
        sources: where the user wrote the nodes of the graph, by name; for the report.
        labels: names of its inputs and weights in the user's words, by name; for the report.
    """

    program: Program
    device: torch.device
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    content: str = ""
    sources: Mapping[str, Source] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def graph_hash(self) -> str:
        """SHA-256 of the graph, see `plan.search.graph_hash`."""
        return search.graph_hash(self.program.graph)


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan for one graph with its measurements.

    Attributes:
        graph: the rewritten graph.
        graph_hash: hash of the graph before the plan.
        key: its key in the plan store; None with `cache=False`.
        portable: key of the plan alone, which other machines may use.
        plan: the steps.
        timing: timing of the rewritten graph against the original, from this or an earlier process.
        verified: its numerical verification, from this or an earlier process.
        is_stored: whether the plan store already has all of this.
    """

    graph: _C.Graph
    graph_hash: str
    key: str | None
    plan: search.Plan
    timing: Timing | None = None
    verified: Verified | None = None
    is_stored: bool = False
    portable: str | None = None

    def remember(self, policy: Policy) -> None:
        """Add it to the plan store, unless it is complete there.

        Timings too close to `min_gain`, given their noise, are not stored: the next process measures again.
        """
        if self.key is None or self.is_stored:
            return
        timing = self.timing
        if timing is not None and policy.is_near_threshold(timing):
            timing = None
        entry = {
            "plan": self.plan.as_dict(),
            "timing": None if timing is None else dataclasses.asdict(timing),
            "verified": None if self.verified is None else stored.errors_as_dict(*self.verified[:2]),
            "portable": self.portable,
        }
        plan_store().put(self.key, entry)


def profile_for(options: Options, where: torch.device) -> MachineProfile:
    """Return the prices that the options select for planning."""
    known = MachineProfile(options.executor, where.type)
    if options.search.prices == "measured":
        known = machine_profile(options.executor, where)
    row = executor_table.row_of(options.executor)
    if row is None or not row.records_cuda_graphs or not options.lowering.records(where.type):
        return known
    # Measured prices include launch overheads that a CUDA graph replay does not have.
    return dataclasses.replace(known, prices=(), is_recorded=True)


def make_plan(subject: Subject, options: Options, plans: Sequence[Mapping[str, Any]] = ()) -> Planned:
    """Return a plan from the user's file, from the store, or from a search.

    Args:
        subject: the graph.
        options: searcher and budgets, or the plan file.
        plans: plans for graphs that may equal this one up to the names of symbols, see `Report.plans`. The
            first plan whose steps all apply is used.

    Raises:
        SearchError: the user's plan is damaged, for another graph or library, or does not apply.
    """
    program, library = subject.program, library_without(options.exclude)
    profile = profile_for(options, subject.device)
    cost = profile.cost_model(subject.sizes)
    found = _known_plan(program.graph, library, cost, plans)
    if found is not None:
        return found
    if options.plan is not None:
        return _given_plan(subject, library, cost, options.plan, options.search)
    key = portable = None
    if options.cache:
        key, portable = _keys_of(subject, library, profile, options)
        found = _stored_plan(program, library, subject.graph_hash, key) or _portable_plan(
            program, library, subject.graph_hash, portable, cost
        )
    if found is None:
        plan = search_plan(program.graph, library, cost, with_budget_for(program.graph, options.search))
        found = Planned(search.replay(program.graph, library, plan), subject.graph_hash, key, plan)
    return dataclasses.replace(found, key=key, portable=portable)


def _keys_of(
    subject: Subject, library: _C.Library, profile: MachineProfile, options: Options
) -> tuple[str, str]:
    """Return the plan store's key, made of everything that a plan depends on, and that for other machines."""
    search_digest = searcher_table.module_of(options.search.searcher).digest(options.search)
    portable = {
        "format": PLAN_FORMAT,
        "graph": subject.graph_hash,
        "content": subject.content,
        "library": library.hash,
        "options": options.search_key(),
        "agent": search_digest,
        "sizes": sorted(subject.sizes.items()),
    }
    here = {
        "device": device.fingerprint(subject.device),
        "prices": profile.digest,
        "versions": versions([options.executor]),
    }
    return make_key(portable | here), make_key(portable | {"device": subject.device.type})


def facts_of(subject: Subject, found: Planned, options: Options) -> dict[str, Any]:
    """Return what a plan does, for the report."""
    cost = profile_for(options, subject.device).cost_model(subject.sizes)
    program, library = subject.program, library_without(options.exclude)
    plan = found.plan
    befores_ms = (plan.cost_before_ms, *plan.costs_ms)
    metrics = cost.metrics(found.graph)
    before, after = priced(program.graph, cost), priced(found.graph, cost)
    return {
        "searcher": plan.searcher or options.search.searcher,
        "graph_hash": found.graph_hash,
        "is_cache_hit": found.is_stored,
        "steps": tuple(
            ReportStep(
                name, location, cost_ms, before_ms - cost_ms, library.family(name), proof_of(library, name)
            )
            for (name, location), before_ms, cost_ms in zip(
                plan.steps, befores_ms, plan.costs_ms, strict=False
            )
        ),
        "plans": ({**json.loads(json.dumps(plan.as_dict())), "executor": options.executor},),
        "cost_before_ms": plan.cost_before_ms,
        "cost_after_ms": plan.cost_after_ms,
        "measured_share": metrics["measured_us"] / metrics["time_us"] if metrics["time_us"] > 0 else 0.0,
        "searches": (_search_of(plan),),
        "records": (PlanRecord(program.graph, plan.steps, before, after, subject.sources, subject.labels),),
        "num_nodes_before": num_operators(program.graph),
        "num_nodes_after": num_operators(found.graph),
    }


def _search_of(plan: search.Plan) -> SearchRecord:
    return SearchRecord(
        plan.found_by, plan.expansions, plan.candidates, plan.is_exhausted, plan.seconds, plan.curve
    )


def search_plan(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: SearchOptions
) -> search.Plan:
    """Return a plan by the searcher named in the options.

    Raises:
        AgentError: the agent cannot be loaded and `on_error="raise"`.
    """
    searcher: search.Searcher = searcher_table.module_of(options.searcher).make_searcher(options, library)
    return searcher.search(graph, library, cost, options)


def with_budget_for(graph: _C.Graph, options: SearchOptions) -> SearchOptions:
    """Return the options with the time budget scaled for graphs above `OPERATORS_OF_BUDGET` operators."""
    factor = max(1.0, graph.num_operators / OPERATORS_OF_BUDGET)
    return dataclasses.replace(options, budget_ms=min(factor * options.budget_ms, MAX_BUDGET_MS))


def given_plan(graph_hash: str, path: str) -> Mapping[str, Any]:
    """Return the entry of a user's plan file for a graph.

    Raises:
        SearchError: it cannot be read, is damaged, or has no entry for this graph.
    """
    saved = SavedPlan.load(path)
    entry = saved.of(graph_hash)
    if entry is None:
        raise SearchError(
            "the plan is for another graph",
            where=path,
            expected=graph_hash,
            got=", ".join(str(each.get("graph_hash")) for each in saved.graphs),
            todo="apply it to the model, sizes and types that it was made for, or plan anew",
        )
    return entry


def _given_plan(
    subject: Subject, library: _C.Library, cost: _C.CostModel, path: str, options: SearchOptions
) -> Planned:
    """Replay the user's plan and price it for this machine."""
    graph, key = subject.program.graph, subject.graph_hash
    plan = search.Plan.from_dict(given_plan(key, path))
    rewritten = search.replay(graph, library, plan, where=path)  # first: it knows the library's names
    loose = [name for name, _ in plan.steps if not library.is_exact(name)]
    if loose and options.numerics == "strict":
        raise SearchError(
            "the plan has steps that change rounding",
            where=path,
            expected="numerics='real'",
            got=f"numerics='strict' and {loose[0]}",
        )
    return Planned(rewritten, key, None, _priced(graph, library, cost, plan))


def _known_plan(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, known: Sequence[Mapping[str, Any]]
) -> Planned | None:
    """Return the first plan that can be replayed; a step that applies is valid for any graph hash."""
    key = search.graph_hash(graph)
    for given in known:
        plan = dataclasses.replace(search.Plan.from_dict(given), graph_hash=key)
        try:
            return Planned(
                search.replay(graph, library, plan), key, None, _priced(graph, library, cost, plan)
            )
        except SearchError as error:
            logger.debug("a plan is not for this graph: %s", error)
    return None


def _priced(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, plan: search.Plan) -> search.Plan:
    """Return a replayable plan with the costs of its steps by this cost model."""
    _, before_ms, costs_ms = search.follow(graph, library, cost, plan.steps)
    return dataclasses.replace(plan, cost_before_ms=before_ms, costs_ms=costs_ms, curve=())


def _stored_plan(program: Program, library: _C.Library, graph_hash: str, key: str) -> Planned | None:
    """Replay the stored plan; any mismatch counts as a cache miss."""
    entry = plan_store().get(key)
    if entry is None:
        return None
    try:
        plan = search.Plan.from_dict(entry["plan"])
        timing = stored.timing_from(entry["timing"])
        verified = entry["verified"]
        if verified is not None:
            error, own = stored.errors_from(verified)
            verified = Verified(error, own, holds_for_all_weights=True)
        graph = search.replay(program.graph, library, plan)
    except (SearchError, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        logger.debug("a stored plan does not fit: %s", error)
        return None
    return Planned(graph, graph_hash, key, plan, timing, verified, is_stored=True)


def _portable_plan(
    program: Program, library: _C.Library, graph_hash: str, key: str, cost: _C.CostModel
) -> Planned | None:
    """Return a plan of another machine with the prices of this one; its verdicts do not hold here."""
    found = _stored_plan(program, library, graph_hash, key)
    if found is None:
        return None
    plan = _priced(program.graph, library, cost, found.plan)
    return dataclasses.replace(found, plan=plan, timing=None, verified=None, is_stored=False)


def versions(executors: Sequence[str]) -> dict[str, str]:
    """Return the versions that a verdict depends on: builds of torchrlopt and of the executors."""
    return {"torchrlopt": _installation()} | {name: registry.version(name) for name in executors}


@functools.cache
def _installation() -> str:
    """Return a hash of the code that runs; equal for all installations of one build."""
    folder, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(path for end in ("py", "so", "txt") for path in folder.rglob(f"*.{end}")):
        if not path.name.startswith("_tools."):  # which never runs for users, and is the largest file
            digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def opaque_operators(program: Program) -> tuple[str, ...]:
    """Return the operators of the graph that are unknown to the core, without duplicates."""
    nodes = (program.graph.node(node) for node in program.graph.topological_order())
    names = (str(node["attrs"]["op"]).partition("#")[0] for node in nodes if node["op"] == "Opaque")
    return tuple(dict.fromkeys(names))


def num_operators(graph: _C.Graph) -> int:
    """Return the number of operators that run at every call, which excludes expressions over weights."""
    nodes = (graph.node(node) for node in graph.topological_order())
    return sum(node["op"] != "Input" and not node["is_static"] for node in nodes)


def plan_store() -> PlanStore:
    """The plan store of this process."""
    return _store_in(default_directory())


@functools.cache
def _store_in(directory: Path) -> PlanStore:
    return PlanStore(directory)
