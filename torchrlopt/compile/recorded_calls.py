"""Calls in a `PrecisionRecord`: their names, and how a graph to be saved is lowered by it and checked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import fx

from torchrlopt.capture.trace import Traced
from torchrlopt.executors.precision.retyped import ATTENTIONS, lowerable, retyped
from torchrlopt.judge import right
from torchrlopt.judge.budget import Budget
from torchrlopt.options import Options
from torchrlopt.report import Journal, PrecisionRecord
from torchrlopt.torch_private.operators import schema_of


def lowered_as(
    module: fx.GraphModule, static: Collection[str], records: Sequence[PrecisionRecord]
) -> tuple[fx.GraphModule, PrecisionRecord | None]:
    """Return a lowered graph in the types that an earlier compilation chose, and the record of that.

    The graph itself, and no record, if nothing was lowered or the choice was for another graph.
    """
    for record in records:
        found = names_in(lowerable(module.graph, static), record)
        if found is not None:
            return retyped(module, *found, is_split=record.is_split), record
    return module, None


def check_saved(
    traced: Traced, run: right.Callee, record: PrecisionRecord | None, options: Options, journal: Journal
) -> None:
    """Compare what is saved with the original, and record what it is.

    Raises:
        VerificationError: it is wrong, or beyond the budget.
    """
    if record is not None:
        journal.add(precision=(record,))
    if not options.verify:
        return
    original, inputs = traced.aten.forward, list(traced.inputs)
    with journal.phase("check"):
        if record is None:
            journal.add(numerical_error=right.verify(traced.aten, original, run, inputs).worst)
        else:
            budget = Budget.of(options.precision, record.max_error)
            budget.confirm(original, right.run(run, inputs), inputs, "the saved graph")


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
