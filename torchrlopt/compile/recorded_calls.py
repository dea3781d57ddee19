"""Calls in a `PrecisionRecord`: how they are named there, and how a graph is lowered by it again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import fx

from torchrlopt.executors.precision.retyped import ATTENTIONS, lowerable, retyped
from torchrlopt.judge.budget import Budget
from torchrlopt.options import Options
from torchrlopt.report import PrecisionRecord
from torchrlopt.torch_private.operators import schema_of


def lowered_as(
    module: fx.GraphModule, static: Collection[str], options: Options, records: Sequence[PrecisionRecord]
) -> tuple[fx.GraphModule, Budget | None]:
    """Return a lowered graph with the calls in bfloat16 that an earlier compilation chose, and the budget.

    The graph itself, and no budget, if nothing was lowered or the choice was for another graph.

    Args:
        module: the lowered graph.
        static: names of the placeholders that are the same in every call.
        options: the user's.
        records: of the earlier compilation, see `Report.precision`.
    """
    for record in records:
        found = names_in(lowerable(module.graph, static), record)
        if found is not None:
            return retyped(module, *found), Budget.of(options.precision, record.max_error)
    return module, None


def names_in(calls: Sequence[fx.Node], record: PrecisionRecord) -> tuple[list[str], list[str]] | None:
    """Names of calls that an earlier compilation lowered, and quantised; None if it was of another graph."""
    known = {_place(at, each): each.name for at, each in enumerate(calls)}
    chosen = {*record.lowered, *record.quantised}
    if record.error is None or record.num_calls != len(known) or not known.keys() >= chosen:
        return None
    return [known[place] for place in record.lowered], [known[place] for place in record.quantised]


def _place(at: int, call: fx.Node) -> str:
    """A call by its position among those that may be lowered: names depend on how a graph was traced."""
    return f"{at} {operator_of(call)}"


def operator_of(call: fx.Node) -> str:
    """Name of the operator of a call, for people."""
    return "attention" if call.target in ATTENTIONS else schema_of(call.target).name.rpartition("::")[2]


def places_of(calls: Sequence[fx.Node], names: Collection[str]) -> tuple[str, ...]:
    """What a record says of the calls with these names, given all that may be lowered."""
    return tuple(_place(at, each) for at, each in enumerate(calls) if each.name in names)
