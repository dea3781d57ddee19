"""`torchrlopt device` and `torchrlopt profile`: measure this machine, and show the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from torchrlopt.api.cli.models import load_model, of_the_model
from torchrlopt.api.cli.tables import two_columns
from torchrlopt.console import Console
from torchrlopt.errors import OptionsError, RlOptError, UnsupportedError
from torchrlopt.executor_table import names
from torchrlopt.machine import profiling
from torchrlopt.machine.cost import machine_profile, profile_store
from torchrlopt.machine.cost.cuda_probe import probe_cuda
from torchrlopt.machine.cost.probe import probe_device
from torchrlopt.machine.device import describe, fingerprint
from torchrlopt.options import Options
from torchrlopt.substitutions import load_library

_UNITS = {
    "flops_per_us": (1e3, "Gflop/s"),
    "bytes_per_us": (1e3, "GB/s"),
    "cache_bytes_per_us": (1e3, "GB/s"),
    "cache_bytes": (1e6, "MB"),
}


def look(where: str, again: bool) -> dict[str, Any]:
    """Describe a device, probing it if it was not probed yet or `again` is set.

    Args:
        where: "cpu", "cuda" or "cuda:1".
        again: probe even if there is an entry.

    Returns:
        JSON-able: the device's description and fingerprint, the probe's results, the number of measured
        prices for each executor, and whether there is a CUDA device.

    Raises:
        OptionsError: there is no such kind of device.
        UnsupportedError: the device has no probe, or does not exist.
    """
    device = _device(where)
    if device.type == "cuda" and not torch.cuda.is_available():
        found = probe_cuda(device.index or 0)
        raise UnsupportedError("there is no CUDA device", where=where, got=f"{found.status}: {found.message}")
    key = fingerprint(device)
    store = profile_store()
    probe = None if again else store.probe(key)
    if probe is None:
        probe = probe_device(device)
        store.put_probe(key, probe)
    return {
        "device": describe(device),
        "fingerprint": key,
        "probe": probe,
        "prices": {name: len(machine_profile(name, device, store).prices) for name in names()},
        "cuda": probe_cuda().status,
        "profile": str(store.path),
    }


def _device(where: str) -> torch.device:
    try:
        device = torch.device(where)
    except RuntimeError as error:
        raise OptionsError("no such device", expected="cpu, cuda or cuda:1", got=where) from error
    if device.type not in ("cpu", "cuda"):
        raise OptionsError("no such device", expected="cpu, cuda or cuda:1", got=where)
    return device


def render(found: Mapping[str, Any]) -> str:
    """Format the result of `look` as a table."""
    numbers = []
    for name, value in found["probe"]["model"].items():
        factor, unit = _UNITS.get(name, (1.0, "us" if name.endswith("_us") else ""))
        numbers.append((name, f"{value / factor:.4g} {unit}".rstrip()))
    prices = ", ".join(f"{name}: {n}" for name, n in found["prices"].items())
    return two_columns(
        "torchrlopt device",
        [*found["device"].items(), ("fingerprint", found["fingerprint"][:16])],
        numbers,
        [
            ("probe took", f"{found['probe']['seconds']:.2f} s"),
            ("measured prices", prices),
            ("CUDA", found["cuda"]),
            ("profile", found["profile"]),
        ],
    )


def fill(models: Sequence[str], executor: str, seconds: float, seed: int) -> None:
    """Profile models one after the other, with a progress bar.

    Args:
        models: paths of .onnx files, or `module:callable`.
        executor: that runs the graphs.
        seconds: time for each model.
        seed: of the random walks to other graphs.

    Raises:
        RlOptError: a model cannot be loaded, captured or lowered.
    """
    Options(executor=executor)  # rejects an unknown name, suggesting the nearest
    if executor not in names():
        raise OptionsError(
            "a profile is of one executor", expected=f"one of {', '.join(names())}", got=executor
        )
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[now]}", markup=False),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        for model in models:
            bar = _Bar(progress, progress.add_task(model, total=seconds or None, now="tracing"))
            try:
                module, inputs = load_model(model)
                with of_the_model(module, inputs, model):
                    sources = profiling.trace(module, inputs)
            except RlOptError as error:
                error.add_note(f"model: {model}")
                raise
            for source in sources:
                progress.console.print(
                    f"{model}: {_fill_from(source, executor, seconds / len(sources), seed, bar)}",
                    highlight=False,
                    soft_wrap=True,
                )
            progress.remove_task(bar.task)


class _Bar:
    """The progress of one model, advanced with every timed graph."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress = progress
        self.task = task

    def __call__(self, timed: profiling.Timed) -> None:
        new = f"{timed.num_new} of {timed.num_nodes} nodes new"
        elapsed = next(each.elapsed for each in self.progress.tasks if each.id == self.task)
        now = f"{timed.what}: {new}, {timed.run_us / 1e3:.2f} ms"
        self.progress.update(self.task, completed=elapsed, now=now)


def _fill_from(source: profiling.Source, executor: str, seconds: float, seed: int, bar: _Bar) -> str:
    """Profile one graph; return the result as one line."""
    store = profile_store()
    before = len(machine_profile(executor, source.device, store).prices)
    count = profiling.profile(source, executor, load_library(), store, seconds, seed, bar)
    known = machine_profile(executor, source.device, store)
    priced = known.cost_model(source.sizes).metrics(source.program.graph)
    share = priced["measured_us"] / priced["time_us"] if priced["time_us"] else 1.0
    new = len(known.prices) - before
    return f"{count} graphs timed, {new} new prices of {len(known.prices)}; {share:.0%} of the price measured"
