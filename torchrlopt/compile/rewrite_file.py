"""ONNX file in, rewritten ONNX file out: load, read, plan, write, check, save."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import onnx_ir
import torch

from torchrlopt import executor_table
from torchrlopt.capture.sampling import generated_inputs
from torchrlopt.compile import check
from torchrlopt.compile.attempt import timed
from torchrlopt.compile.memory import keep_original
from torchrlopt.errors import OptionsError, RlOptError
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.onnx import files
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.standard import standardise
from torchrlopt.onnx.writer import write
from torchrlopt.options import Options
from torchrlopt.plan.planning import Subject, make_plan, opaque_operators
from torchrlopt.report import Report


def rewrite_file(path_in: Path, path_out: Path, options: Options) -> Report:
    """Read an ONNX file, rewrite it and write it with standard operators; see `optimise_onnx`."""
    if options.executor == "auto":
        raise OptionsError(
            "a file is planned by the prices of one executor, and nothing is timed",
            expected=f"one of {', '.join(executor_table.names())}",
            got="auto",
        )
    if options.executor == "default":
        options = dataclasses.replace(options, executor=executor_table.BASELINE)
    if not path_out.absolute().parent.is_dir():
        raise OptionsError("there is no such folder for the result", where=str(path_out))
    report = Report(searcher=options.searcher, executor=options.executor)
    phase = functools.partial(timed, report)
    with phase("load"):
        model = source = files.load(path_in)
    try:
        with phase("read"):
            program = read(source)
            report.opaque = opaque_operators(program)
        with phase("plan"):
            planned = make_plan(Subject(program, torch.device("cpu")), options, report)
            planned.settle(dataclasses.replace(options, measure=False), report)
        with phase("write"):
            model = write(dataclasses.replace(program, graph=planned.graph))
            standardise(model)
        with phase("check"):
            if options.verify:
                report.numerical_error = _verify_model(source, model, options)
        report.kept = "rewritten"
    except (RlOptError, MemoryError) as error:
        if options.on_error == "raise":
            raise
        keep_original(error, report)
        model = source
    with phase("save"):
        files.save(model, path_out)
    return report


def _verify_model(source: onnx_ir.Model, model: onnx_ir.Model, options: Options) -> float:
    """Compare both models in the eager executor, on random inputs."""
    aten = lower_model(source)
    inputs = generated_inputs(aten, options.seed)
    return check.verify(aten, aten.forward, lower_model(model).forward, inputs)
