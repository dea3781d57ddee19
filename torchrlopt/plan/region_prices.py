"""Predicted costs for regions of a graph: time saved in a runtime, and the cost of their borders."""

from __future__ import annotations

import dataclasses

from torchrlopt import _C, executor_table
from torchrlopt.executors import registry
from torchrlopt.executors.regions.cut import Prices
from torchrlopt.onnx.writer import fresh_prefix, node_name
from torchrlopt.options import Options
from torchrlopt.plan.planning import Subject, profile_for


def region_prices(graph: _C.Graph, subject: Subject, options: Options) -> Prices:
    """Return prices of the nodes of a rewritten graph, by their names in the written model.

    Args:
        graph: the rewritten graph.
        subject: the graph that it was rewritten from.
        options: name the executor that may run regions of it.
    """
    baseline = dataclasses.replace(options, executor=executor_table.BASELINE)
    outside, inside = (profile_for(each, subject.device) for each in (baseline, options))
    costs = [profile.cost_model(subject.sizes) for profile in (outside, inside)]
    prefix = fresh_prefix(subject.program.source)
    saved_us = {}
    for id_ in graph.topological_order():
        before, after = (cost.node(graph, id_)["time_us"] for cost in costs)
        saved_us[node_name(graph.node(id_), prefix)] = before - after
    return Prices(
        saved_us,
        registry.row(options.executor).crossing_us,
        outside.device_model().bytes_per_us,
    )
