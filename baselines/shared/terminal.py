"""Terminal output of commands: console, progress, and the description of the machine."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# Characters that the widest table needs, for output without a width of its own.
_PLAIN_WIDTH = 200
# Processes that ran or waited for a core in the last minute, on average; an idle machine has 0.0 to 0.2.
_QUIET_LOAD = 0.5


def console() -> Console:
    """The terminal; for redirected output, a console of fixed width."""
    return Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)


def progress(to: Console) -> Progress:
    """A bar with description, progress and elapsed time, which disappears at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=to, transient=True)


def announce(to: Console, *settings: object) -> None:
    """Print the machine and the settings of a measurement, and warn if the machine is busy."""
    to.print("; ".join(map(str, (machine(), *settings))), highlight=False)
    load = os.getloadavg()[0]
    if load > _QUIET_LOAD:
        to.print(f"The machine is busy (load {load:.1f}): expect wide quartiles.", style="yellow")


def machine() -> str:
    """Processor and versions, on one line."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
        processor = names[0] if names else processor
    packages = [name for name in ("torch", "onnxruntime", "torchrlopt") if _has(name)]
    versions = [
        f"python {platform.python_version()}",
        *(f"{name} {metadata.version(name)}" for name in packages),
    ]
    return f"{processor}, {os.cpu_count()} cores, {', '.join(versions)}"


def _has(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
