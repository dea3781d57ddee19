"""Rewrites an ONNX file: load, read, plan, write, fold, check, save.

The file keeps its opset, unless another one is asked for; one that is older than the supported ones is
converted to the oldest of these.

The rewritten model is written next to its destination and moved there at the end: if anything fails before
that, existing files are unchanged.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import torch
from onnx_ir.passes import common

from torchrlopt import executor_table
from torchrlopt.compile.check_file import check_apart
from torchrlopt.compile.explained import environment_of
from torchrlopt.compile.fallback import described, keep_original
from torchrlopt.compile.fold_file import fold
from torchrlopt.errors import OptionsError, RlOptError, UnsupportedError
from torchrlopt.executors.onnx_runtimes.file_calls import RUNTIMES
from torchrlopt.judge.policy import Policy
from torchrlopt.onnx import files, safety
from torchrlopt.onnx.constants import LARGE, folded
from torchrlopt.onnx.forms.from_onnx import OPERATORS
from torchrlopt.onnx.missing_types import read_with_types
from torchrlopt.onnx.older_opset import lower_opset
from torchrlopt.onnx.opsets import NATIVE, NEWEST, OLDEST, STANDARD_DOMAINS, default_opset
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.reader import reads_integers
from torchrlopt.onnx.saving import Staged
from torchrlopt.onnx.standard import standardise
from torchrlopt.onnx.upgrade import upgraded
from torchrlopt.onnx.weightless import without_weights
from torchrlopt.onnx.writer import write
from torchrlopt.options import OnError, Options
from torchrlopt.plan.planning import Subject, facts_of, make_plan, opaque_operators
from torchrlopt.report import Journal, Report, Status, Timing
from torchrlopt.substitutions import load_library


def rewrite_file(path_in: Path, path_out: Path, options: Options, opset: int | None = None) -> Report:
    """Read an ONNX file, rewrite it and write it with standard operators; see `optimise_onnx`."""
    newest = min(NEWEST, onnx.defs.onnx_opset_version())
    if opset is not None and opset not in range(OLDEST, newest + 1):
        raise OptionsError("files of this opset are not written", expected=f"{OLDEST} to {newest}", got=opset)
    if options.tries_all:
        raise OptionsError(
            "a file is planned and timed for one executor",
            expected=f"one of {', '.join(executor_table.names())}",
            got=options.executor,
        )
    if options.precision.max_error is not None:
        raise OptionsError(
            "a file keeps the types that it has",
            expected="no max_error",
            got=f"max_error={options.precision.max_error!r}",
        )
    others = [name for name in options.exclude if load_library().find(name) < 0]
    if others:
        raise OptionsError("files exclude substitutions only", got=f"exclude={others!r}")
    if options.executor == "default":
        options = dataclasses.replace(options, executor=executor_table.BASELINE)
    if not path_out.absolute().parent.is_dir():
        raise OptionsError("there is no such folder for the result", where=str(path_out))
    journal, status = Journal(searcher=options.search.searcher, executor=options.executor), Status()
    journal.add(environment=environment_of(options, torch.device("cpu")))
    with journal.phase("load"):
        proto = safety.parse(path_in)
        source = _Source.of(proto, path_in, options.on_error, opset)
    is_in_place = _place(path_in) == _place(path_out)
    with Staged(path_out, keep=() if is_in_place else _data_files(proto, path_in.parent)) as staged:
        try:
            if source.refusal is not None:
                raise source.refusal
            with journal.phase("read"):
                model = files.made_of(source.proto, path_in)
                common.RemoveUnusedNodesPass()(model)
                common.LiftConstantsToInitializersPass(size_limit=LARGE)(model)
                program = read_with_types(source.proto, model)
                journal.add(opaque=opaque_operators(program))
                for note in (*reasons(program), *source.notes):
                    journal.add_note(note)
            plain, start = journal.fork(), time.perf_counter()
            reason = _attempt(program, path_in, staged, source, options, journal)
            if reason is not None and options.search.searcher != "none":
                # Without the plan, folded constants alone may make a better file.
                search = options.search.with_searcher("none")
                plain.add_ms("other attempts", (time.perf_counter() - start) * 1e3)
                plain.add_note(f"the plan is left out: {reason}")
                unplanned = dataclasses.replace(options, search=search)
                if _attempt(program, path_in, staged, source, unplanned, plain) is None:
                    journal, reason = plain, None
            status.kept = "rewritten"
            if reason is not None:
                status.keep_original(reason)
                staged.write(proto, path_in.parent)
        except Exception as error:
            if options.on_error == "raise" or source.opset is not None:
                raise
            keep_original(error, status)
            staged.write(proto, path_in.parent)
        with journal.phase("save"):
            staged.commit()
    return journal.report(status)


def _attempt(
    program: Program, path_in: Path, staged: Staged, source: _Source, options: Options, journal: Journal
) -> str | None:
    """Plan, write, fold, check and time; return why the original is better, or None."""
    with journal.phase("plan"):
        subject = Subject(program, torch.device("cpu"))
        journal.add(graph_hash=subject.graph_hash, searcher=options.search.searcher)
        planned = make_plan(subject, options)
        journal.add(**facts_of(subject, planned, options))
        planned.remember(Policy.of(options.timing))
    with journal.phase("write"):
        model = write(dataclasses.replace(program, graph=planned.graph))
        common.LiftConstantsToInitializersPass(size_limit=2)(model)  # a norm's weights may be few
        standardise(model)
        lower_opset(model, source.opset or program.opset)
        staged.write(files.message(model), path_in.parent)
    with journal.phase("fold"):
        if _fold(model, staged, source, journal):
            staged.write(files.message(model), path_in.parent)
    after = _num_nodes(safety.parse(staged.model_path))
    journal.add(num_nodes_before=source.num_nodes, num_nodes_after=after)
    with journal.phase("check"):
        timing = _check(path_in, staged, source, options, journal)
    policy = Policy.of(options.timing)
    # Inputs of free sizes are small ones here, whose times say little about those of larger ones.
    is_smaller = after < source.num_nodes or _has_free_sizes(source.proto)
    # Of another opset there is no original to keep: without a plan, the result is its conversion.
    is_conversion = source.opset is not None and options.search.searcher == "none"
    if timing is None or is_conversion or _is_better(policy, timing, is_smaller=is_smaller):
        return None
    how, numbers = policy.shortfall(timing)
    return f"the rewritten file is {how}: {numbers}"


def _place(path: Path) -> Path:
    """Return the path with links resolved in all but the last part."""
    return path.parent.resolve() / path.name


@dataclasses.dataclass(frozen=True)
class _Source:
    """A parsed file.

    Attributes:
        proto: the message in it, converted if necessary, with constants folded.
        num_nodes: how many nodes it had.
        weights: names of those that the file has.
        opset: to write, if it is not the file's own.
        converted: whether the result has another opset than the file.
        notes: for the report.
        refusal: why the file, though valid, is not supported.
    """

    proto: onnx.ModelProto
    num_nodes: int
    weights: frozenset[str] = frozenset()
    opset: int | None = None
    converted: bool = False
    notes: tuple[str, ...] = ()
    refusal: UnsupportedError | None = None

    @classmethod
    def of(cls, proto: onnx.ModelProto, path: Path, on_error: OnError, opset: int | None) -> _Source:
        """Check the message, convert it and fold its constants; a malformed one raises."""
        own = default_opset(proto)
        opset = None if opset == own else opset
        try:
            right = files.checked(proto, path)
            found = upgraded(right, path, OLDEST if opset is None else max(opset, own or NATIVE))
        except UnsupportedError as error:
            if on_error == "raise" or opset is not None:
                raise
            return cls(proto, _num_nodes(proto), refusal=error)
        weights = frozenset(tensor.name for tensor in proto.graph.initializer)
        converted = opset is not None or found is not right
        notes = (f"converted to opset {opset or OLDEST}",) if converted else ()
        return cls(_folded(found, path), _num_nodes(proto), weights, opset, converted, notes)


def _fold(model: onnx_ir.Model, staged: Staged, source: _Source, journal: Journal) -> bool:
    """Evaluate the expressions over weights of the model, which is in the staged file, in place."""
    try:
        return fold(model, staged.model_path, _weight_bytes(source.proto))
    except UnsupportedError as error:
        journal.add_note(f"expressions over weights stay in the file: {described(error)}")
        return False


def _num_nodes(proto: onnx.ModelProto) -> int:
    """Number of nodes that compute something, without those in the bodies of others."""
    return sum(node.op_type != "Constant" for node in proto.graph.node)


def _has_free_sizes(proto: onnx.ModelProto) -> bool:
    """Whether the size of an input is not fixed."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value.type.tensor_type for value in proto.graph.input if value.name not in weights]
    return any(
        not each.HasField("shape") or any(not dim.HasField("dim_value") for dim in each.shape.dim)
        for each in inputs
    )


def _is_better(policy: Policy, timing: Timing, *, is_smaller: bool) -> bool:
    """Whether a file replaces the one that it was made from: it is faster, or smaller and not slower."""
    return policy.is_faster(timing) or (is_smaller and not policy.is_clearly_slower(timing))


def _folded(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Fold constants; what another process answers is checked like a file."""
    found = folded(proto)
    if found is proto:
        return proto
    try:
        return files.checked(found, path)
    except RlOptError:
        return proto


def _check(
    path_in: Path, staged: Staged, source: _Source, options: Options, journal: Journal
) -> Timing | None:
    """Load what was written; compare it with the original if `verify` is on, and time both."""
    runtime = options.executor if options.executor in RUNTIMES else "onnxruntime"  # runs files itself
    # What is in the file the check takes from there; constants that were folded are not.
    small = without_weights(source.proto, source.weights) if source.converted else onnx.ModelProto()
    checked = check_apart(
        path_in,
        staged.model_path,
        options.search.seed,
        _weight_bytes(source.proto),
        small.SerializeToString(),
        verify=options.verify,
        runtime=runtime if options.timing.measure else None,
        policy=Policy.of(options.timing),
    )
    journal.add(numerical_error=checked.error)
    if checked.timing is not None:
        journal.add_timing(checked.timing)
    if not options.verify:
        journal.add_note("the result was not compared with the original: verify=False")
    if checked.around:
        journal.add_note(
            f"not run in the check, only what they are given was compared: {', '.join(checked.around)}"
        )
    return checked.timing


def _weight_bytes(proto: onnx.ModelProto) -> int:
    """Return the size of a model's tensors, including external ones."""
    return sum(
        safety.num_bytes(tensor) if safety.is_external(tensor) else tensor.ByteSize()
        for tensor in safety.tensors(proto)
    )


def _data_files(proto: onnx.ModelProto, base: Path) -> set[Path]:
    """Return the files that hold a model's external data."""
    outside = filter(safety.is_external, safety.tensors(proto))
    return {base / safety.location(tensor)[0] for tensor in outside}


def reasons(program: Program) -> tuple[str, ...]:
    """One line per operator and reason, the most frequent first."""
    graph = program.graph
    nodes = map(graph.node, graph.topological_order())
    integers = {str(node.name) for node in program.source.graph if reads_integers(node)}
    counts = Counter(_reason(program, node, integers) for node in nodes if node["op"] == "Opaque")
    return tuple(f"{count} x {line}" for line, count in counts.most_common())


def _reason(program: Program, node: Mapping[str, Any], integers: Collection[str]) -> str:
    name = str(node["attrs"]["op"]).partition("#")[0]
    domain, _, op = name.partition("::")
    types = [program.graph.type(value) for value in node["inputs"] if value is not None]
    if domain not in STANDARD_DOMAINS:
        reason = "an operator of another domain"
    elif op not in OPERATORS:
        reason = "no substitution is about this operator"
    elif node["name"] in integers:
        reason = "runtimes compute it with integers"
    elif any(dims is None for _, dims in types):
        reason = "the shape of an operand is not known"
    else:
        reason = "this form of the operator is not rewritten"
    return f"{name} left alone: {reason}"
