"""A graph with its original, and how its rewritten form becomes a callable."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir
import torch

from torchrlopt import _C, executor_table
from torchrlopt.capture.job import Job, make_job
from torchrlopt.capture.trace import Traced
from torchrlopt.executors import registry
from torchrlopt.executors.isolation import verdicts
from torchrlopt.executors.regions.cut import Prices
from torchrlopt.executors.regions.lower import lower
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge.graph_check import GraphCheck
from torchrlopt.machine import device
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.writer import fresh_prefix, node_name, write
from torchrlopt.options import Options
from torchrlopt.plan.planning import Subject, facts_of, make_plan, plan_store, profile_for
from torchrlopt.report import Journal


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A job with the original that it competes against.

    Attributes:
        job: the graph.
        original: takes the inputs of the ATen graph and computes what the user's model computes.
        inputs: makes the inputs of the ATen graph, in order, for one call of the check or the timing: the
            original may write to them.
        seed: of random inputs for the check.
    """

    job: Job
    original: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    seed: int = 0

    @functools.cached_property
    def subject(self) -> Subject:
        """The graph, for planning."""
        return subject_of(self.job)

    @functools.cached_property
    def check(self) -> GraphCheck:
        """Verifies candidates for the graph."""
        traced = self.job.traced
        return GraphCheck(traced.aten, self.inputs, traced.static, traced.device.type, self.seed)


def subject_of(job: Job) -> Subject:
    """Return what planning needs of a job."""
    traced = job.traced
    return Subject(job.program, traced.device, traced.sizes, traced.content, job.sources, job.labels)


def planned_again(
    traced: Traced, options: Options, plans: Sequence[Mapping[str, Any]], journal: Journal
) -> tuple[Job, onnx_ir.Model]:
    """Plan a graph that is to be saved, and write it as ONNX.

    The first of `plans` that fits the graph is used, see `Report.plans`; without one, the plan comes from the
    store or a search.
    """
    with journal.phase("capture"):
        job = make_job(traced, options.exclude)
        journal.add(opaque=job.captured.opaque)
    with journal.phase("plan"):
        subject = subject_of(job)
        planned = make_plan(subject, options, plans)
        journal.add(**facts_of(subject, planned, options))
    with journal.phase("write"):
        model = written(planned.graph, job)
    return job, model


def written(graph: _C.Graph, job: Job) -> onnx_ir.Model:
    """Write a rewritten graph of a job as ONNX."""
    return write(dataclasses.replace(job.program, graph=graph))


def keys_of(graph: _C.Graph, program: Program) -> dict[str, int]:
    """Return the keys of a rewritten graph's nodes by their names in the model that is written of it."""
    prefix = fresh_prefix(program.source)
    return {node_name(graph.node(key), prefix): key for key in graph.topological_order()}


def lowered_from(model: onnx_ir.Model, graph: _C.Graph, contestant: Contestant, options: Options) -> Lowered:
    """Lower a rewritten graph for the executor that the options name.

    Raises:
        LoweringError: the executor does not accept it.
    """
    verdicts.remember_in(plan_store, device.fingerprint(torch.device("cpu")))  # runtimes compute on the CPU
    prices = functools.partial(region_prices, graph, contestant.subject, options)
    return lower(registry.get(options.executor), model, contestant.job.captured, options.lowering, prices)


def region_prices(graph: _C.Graph, subject: Subject, options: Options) -> Prices:
    """Return prices of the nodes of a rewritten graph, by their names in the written model."""
    baseline = dataclasses.replace(options, executor=executor_table.BASELINE)
    outside, inside = (profile_for(each, subject.device) for each in (baseline, options))
    costs = [profile.cost_model(subject.sizes) for profile in (outside, inside)]
    saved_us = {}
    for name, key in keys_of(graph, subject.program).items():
        before, after = (cost.node(graph, key)["time_us"] for cost in costs)
        saved_us[name] = before - after
    return Prices(
        saved_us,
        registry.row(options.executor).crossing_us,
        outside.device_model().bytes_per_us,
    )
