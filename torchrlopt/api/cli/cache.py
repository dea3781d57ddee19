"""`torchrlopt cache ...`: shows and clears the user's cache directory; carries it to other machines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from torchrlopt import executor_table
from torchrlopt.api.cli.tables import two_columns
from torchrlopt.errors import RlOptError
from torchrlopt.machine.cost import ProfileStore
from torchrlopt.plan.store import KIND, PlanStore
from torchrlopt.storage.bundle import read_bundle, write_bundle
from torchrlopt.storage.directory import default_directory

app = typer.Typer(no_args_is_help=True, help="What is kept on disk between processes.")


@app.command()
def info(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Show where the cache is, what it contains and how large it is.

    Example: torchrlopt cache info --json
    """
    found = look(default_directory())
    typer.echo(json.dumps(found, indent=2) if as_json else render(found))


@app.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    profiles: Annotated[bool, typer.Option("--profiles", help="Also what was measured here.")] = False,
) -> None:
    """Delete plans, verdicts, choices and files that executors have built; all are made again when needed.

    Example: torchrlopt cache clear --yes
    """
    directory = default_directory()
    found = look(directory)
    doomed = ["plans", "choices", "files"] + (["prices", "probes"] if profiles else [])
    what = ", ".join(f"{found[name]} {name}" for name in doomed)
    if not yes:
        typer.confirm(f"Delete {what} in {directory}?", abort=True)
    is_done = PlanStore(directory).clear()
    if profiles:
        is_done = ProfileStore(directory).clear() and is_done
    try:
        for path in _files(directory):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise RlOptError("a file cannot be deleted", where=str(directory), got=str(error)) from error
    if not is_done:
        raise RlOptError("a database cannot be changed", where=str(directory), todo="see the warning above")
    typer.echo(f"deleted {what}")


@app.command("export")
def export(path: Annotated[Path, typer.Argument(help="The bundle to write.")]) -> None:
    """Write plans, verdicts, choices and prices to a bundle, for `import` or TORCHRLOPT_CACHE_BUNDLE.

    Files that executors have built are left out: they are code.

    Example: torchrlopt cache export model.bundle
    """
    directory = default_directory()
    plans, profiles = PlanStore(directory), ProfileStore(directory)
    count = write_bundle(path, [*plans.bundled(), *profiles.bundled()])
    typer.echo(f"wrote {count} entries to {path}")


@app.command("import")
def import_(path: Annotated[Path, typer.Argument(help="A bundle that `export` wrote.")]) -> None:
    """Add the entries of a bundle to the cache. Of two with one key, the one that was measured last stays.

    Example: torchrlopt cache import model.bundle
    """
    directory, bundle = default_directory(), read_bundle(path)
    plans = list(bundle.entries(KIND))  # all are read before anything is written
    measured = ProfileStore(directory).merge(bundle)
    merged = PlanStore(directory).merge(plans)
    if measured is None or merged is None:
        raise RlOptError("a database cannot be changed", where=str(directory), todo="see the warning above")
    typer.echo(
        f"added {merged.added} entries, replaced {merged.replaced} older ones, left out {merged.kept} that "
        f"are no newer than those here; changed {measured[0]} prices, {measured[1]} probes"
    )


def look(directory: Path) -> dict[str, Any]:
    """Describe a cache directory.

    Returns:
        JSON-able: "path"; numbers of "plans", of "verdicts" (plans with a timing), of "choices" among
        executors, of "profiles" (an executor on a device) and their "prices", of "probes", and of "files"
        that executors have built; "bytes"; "oldest" and "newest" of the times when a plan was used or a price
        measured, None if there are none.
    """
    plans, profiles = PlanStore(directory), ProfileStore(directory)
    entries, measured, files = plans.entries(), profiles.profiles(), _files(directory)
    times = [entry.used_at for entry in entries]
    times += [moment for each in measured for moment in (each.oldest, each.newest)]
    counts = Counter(kind for entry in entries for kind in _kinds(entry.payload))
    return {
        "path": str(directory),
        **{kind: counts[kind] for kind in ("plans", "verdicts", "choices")},
        "profiles": len(measured),
        "prices": sum(each.num_prices for each in measured),
        "probes": profiles.num_probes,
        "files": len(files),
        "bytes": plans.num_bytes + profiles.num_bytes + sum(path.stat().st_size for path in files),
        "oldest": _text(min(times)) if times else None,
        "newest": _text(max(times)) if times else None,
    }


def render(found: Mapping[str, Any]) -> str:
    """Format the result of `look` as a table."""
    shown = {**found, "size": f"{found['bytes'] / 1e6:.1f} MB"}
    del shown["bytes"]
    return two_columns("torchrlopt cache", shown.items())


def _kinds(payload: Mapping[str, Any]) -> list[str]:
    """Return the kinds that an entry of the plan store counts as."""
    kinds = {"plan": "plans", "timing": "verdicts", "executor": "choices"}
    return [kind for name, kind in kinds.items() if payload.get(name)]


def _files(directory: Path) -> list[Path]:
    """Return the files that executors keep, each in a folder of its name."""
    folders = [directory / name for name in executor_table.names()]
    found = [path for folder in folders if not folder.is_symlink() for path in folder.glob("*")]
    return [path for path in found if path.is_file() and not path.is_symlink()]


def _text(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().isoformat(sep=" ", timespec="minutes")
