"""Where a call's time goes, operator by operator, in the eager executor and beside it.

`python -m baselines.operators --help`.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from baselines.models import NAMES, build
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, choose

WAYS = ("eager", "inductor_freezing", "onnxruntime")
KINDS: Mapping[str, tuple[str, ...]] = {
    "convolution": ("conv",),
    "product": ("linear", "gemm", "matmul", "addmm", "::mm", "::bmm"),
    "pool": ("pool", "::mean", "::sum", "reducemean"),
    "concat": ("cat",),
    "layout": ("copy", "contiguous", "reorder", "transpose", "clone"),
    "elementwise": ("mul", "add", "sigmoid", "swish", "relu", "clip", "div", "cpp_fused"),
}
"""Parts of the names of operators, lower case; the first kind that fits counts."""
REST = "rest"
COLUMNS = ("model", "way", "call_ms", *KINDS, REST)

_NUM_PROFILED = 30


def main(
    models: Annotated[str, typer.Option(help="Models, separated by commas.")] = "mobilenet_v3,squeezenet1_1",
    ways: Annotated[str, typer.Option(help=f"Of: {', '.join(WAYS)}.")] = "all",
    passes: Annotated[int, typer.Option(min=1, help="Processes of each, in turns; the quickest counts.")] = 3,
    calls: Annotated[int, typer.Option(min=1, help="Timed calls of each process; the least counts.")] = 200,
    csv: CsvFile = None,
) -> None:
    """Time a call in one thread, and its operators by kind; each in a process of its own.

    eager is torchrlopt's eager executor with frozen weights. The operators are timed in calls after the timed
    ones, by each runtime's own profiler.

    Example: python -m baselines.operators --models mobilenet_v3 --passes 3
    """
    names, chosen = choose(models, NAMES, "model"), choose(ways, WAYS, "way")
    console = terminal.console()
    console.print(terminal.machine(), highlight=False)
    best: dict[tuple[str, str], tuple[float, dict[str, float]]] = {}
    for _ in range(passes):
        for key in ((name, way) for name in names for way in chosen):
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                found = pool.submit(measure, *key, calls).result()
            best[key] = min(best.get(key, found), found, key=lambda each: each[0])
    rows = [(*key, *_cells(*best[key])) for key in best]
    made = terminal.table("Milliseconds of a call in one thread", COLUMNS[:2], COLUMNS[2:])
    for row in rows:
        made.add_row(*row)
    console.print(made)
    if csv is not None:
        csv_files.write(csv, COLUMNS, rows)


def _cells(call_ms: float, kinds: Mapping[str, float]) -> list[str]:
    return [f"{call_ms:.3f}", *(f"{kinds.get(kind, 0.0):.3f}" for kind in (*KINDS, REST))]


def kind_of(name: str) -> str:
    """The kind of an operator."""
    lower = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in lower for part in parts)), REST)


def measure(name: str, way: str, calls: int) -> tuple[float, dict[str, float]]:
    """The quickest call of a model in milliseconds, and the mean milliseconds of its operators by kind."""
    torch.set_num_threads(1)
    model, inputs = build(name)
    if way == "onnxruntime":
        return _in_onnxruntime(model, inputs, calls)
    if way == "eager":
        import torchrlopt

        options = {"executor": "eager", "weights": "frozen", "min_gain": -10.0, "cache": False}
        call: Callable[..., Any] = torchrlopt.optimise(model, inputs, measure=False, **options)
    else:
        from torch._inductor import config

        config.freezing = True
        config.cpp.enable_kernel_profile = True
        call = torch.compile(model)
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad():
        call_ms = least_ms(lambda: call(*inputs), calls)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(_NUM_PROFILED):
                call(*inputs)
    return call_ms, by_kind((each.key, each.self_cpu_time_total / 1e3) for each in profiler.key_averages())


def least_ms(call: Callable[[], Any], calls: int) -> float:
    """The quickest of some calls, after two that do not count."""
    least = float("inf")
    for at in range(calls + 2):
        start = time.perf_counter()
        call()
        if at >= 2:
            least = min(least, (time.perf_counter() - start) * 1e3)
    return least


def by_kind(times: Any) -> dict[str, float]:
    """Milliseconds of a call, by kind, of pairs of an operator and its milliseconds in all profiled calls."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, ms in times:
        found[kind_of(name)] += ms / _NUM_PROFILED
    return dict(found)


def _in_onnxruntime(model: Any, inputs: Sequence[Any], calls: int) -> tuple[float, dict[str, float]]:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, tuple(inputs), path, dynamo=True, verbose=False)

        def opened(is_profiled: bool) -> Callable[[], Any]:
            settings = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = settings.inter_op_num_threads = 1
            settings.enable_profiling = is_profiled
            settings.profile_file_prefix = str(Path(folder) / "profile")
            session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
            names = [each.name for each in session.get_inputs()]
            feeds = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
            call = lambda: session.run(None, feeds)  # noqa: E731
            call.__dict__["session"] = session
            return call

        call_ms = least_ms(opened(is_profiled=False), calls)
        profiled = opened(is_profiled=True)
        for _ in range(_NUM_PROFILED):
            profiled()
        events = json.loads(Path(profiled.__dict__["session"].end_profiling()).read_text(encoding="utf-8"))
    nodes = [each for each in events if each.get("cat") == "Node" and "op_name" in each.get("args", {})]
    return call_ms, by_kind((each["args"]["op_name"], each["dur"] / 1e3) for each in nodes)


if __name__ == "__main__":
    typer.run(main)
