"""`torchrlopt substitutions check | prove`: checks layer by layer, from construction to Z3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from torchrlopt import _C
from torchrlopt.api.cli.library import named
from torchrlopt.compile.progress import progress
from torchrlopt.console import Console
from torchrlopt.errors import OptionsError, SubstitutionError
from torchrlopt.substitutions import file_text, library_files, library_text
from torchrlopt.substitutions.proof.layers import THOROUGH, Checked, Effort, check_texts, default_jobs
from torchrlopt.substitutions.proof.records import (
    STATES,
    axioms_hash,
    state_of,
    texts_of,
    write_records,
)


def check(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Names, or files with substitutions; all of the library without any."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")] = 1,
    bindings: Annotated[int, typer.Option(min=1, help="Instances of shapes and attributes.")] = 200,
    seeds: Annotated[int, typer.Option(min=1, help="Random data for each.")] = 2,
) -> None:
    """Check substitutions by construction and exact evaluation, for use after an edit.

    Each is placed in all contexts that it can occur in, applied by the product's own matcher, and compared
    over a prime field, or in float64 if functions are not polynomials. This is not a proof; that is `prove`.

    Example: torchrlopt substitutions check fuse_conv_relu --bindings 50
    """
    text, chosen = _chosen(what or [])
    found = _run(text, chosen, Effort(bindings, seeds, instances=0), jobs)
    _report(found, Console(stderr=False, soft_wrap=True), "tested")


def prove(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Names, or files with substitutions; all of the library without any."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")] = default_jobs(),
    bindings: Annotated[int, typer.Option(min=1, help="Instances that are evaluated.")] = 200,
    instances: Annotated[
        int, typer.Option(min=1, help="Instances that the cases of a proof come from.")
    ] = 24,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which one proof is given up.")] = 15.0,
    write: Annotated[
        bool, typer.Option("--write", help="Put each result next to its substitution as soon as it is there.")
    ] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only those without a record that fits: goes on after Ctrl-C.")
    ] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="No proofs: 256 instances and 4 seeds each, in all contexts.")
    ] = False,
) -> None:
    """Check substitutions by exact evaluation, then prove them with Z3 from the axioms.

    A proof holds for all sizes, numbers and elements in every case drawn: ranks, axes, number of members, and
    which sizes are 1 or equal. A substitution without a proof stays `tested`; that does not make it wrong. Z3
    is limited by a number of steps, so that every machine finds the same proofs.

    Example: torchrlopt substitutions prove fuse_conv_relu --write
    """
    text, chosen = _chosen(what or [])
    if stale:
        library, axioms = _C.Library(text), axioms_hash()
        fits = ("proved", "tested", "assumed")
        chosen = [names for names in chosen if state_of(library, names[0], axioms) not in fits]
    effort = THOROUGH if thorough else Effort(bindings, 2, instances, timeout)

    def keep(checked: Checked) -> None:
        if write and not thorough and checked.record is not None:
            for path in _files(what or []):
                write_records(path, {checked.name: checked.record})

    found = _run(text, chosen, effort, jobs, keep)
    _report(found, Console(stderr=False, soft_wrap=True), "tested" if thorough else "proved")


def _files(what: Sequence[str]) -> list[Path]:
    """Return the requested files, or the library's."""
    given = [Path(each) for each in what if _is_file(each)]
    return given if given and len(given) == len(what) else [*given, *library_files()]


def _is_file(what: str) -> bool:
    return what.endswith(".txt") or "/" in what


def _chosen(what: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Return the text to read, and the names to check, grouped by text."""
    paths = [Path(each) for each in what if _is_file(each)]
    names = [each for each in what if not _is_file(each)]
    for path in paths:
        if not path.is_file():
            raise OptionsError("no such file", where=str(path))
    text = "" if paths and not names else library_text()
    own = {path.resolve() for path in library_files()} if text else set()
    text += "".join(file_text(path) for path in paths if path.resolve() not in own)
    library = _C.Library(text)
    texts = texts_of(library)
    if not what:
        return text, list(texts.values())
    wanted = {named(library, name) for name in names}
    for path in paths:
        wanted |= set(_parsed(path).names)
    return text, [members for members in texts.values() if wanted & set(members)]


def _parsed(path: Path) -> _C.Library:
    try:
        return _C.Library(file_text(path))
    except SubstitutionError as error:
        raise SubstitutionError(error.reason, name=error.name, line=error.line, file=str(path)) from error


def _run(
    text: str,
    chosen: Sequence[Sequence[str]],
    effort: Effort,
    jobs: int,
    keep: Callable[[Checked], None] = lambda checked: None,
) -> list[Checked]:
    """Check all, with progress on a terminal, pass each result to `keep`, return them in the given order."""
    found: list[Checked] = []
    with progress("checking", len(chosen)) as advance:
        for each in _in_processes(text, chosen, effort, jobs):
            found.append(each)
            keep(each)
            advance(each.name)
    order = {names[0]: position for position, names in enumerate(chosen)}
    return sorted(found, key=lambda each: order[each.name])


def _in_processes(text: str, chosen: Sequence[Sequence[str]], effort: Effort, jobs: int) -> Iterator[Checked]:
    # A process takes a second to start: not worth it for evaluating a few substitutions.
    yield from check_texts(text, chosen, effort, jobs if effort.instances or len(chosen) > 4 else None)


def _report(found: Sequence[Checked], console: Console, best: str) -> None:
    """Print a line for each result below the best, then the counts; exit with status 1 if one is unsound."""
    for each in found:
        state = STATES[each.record.method] if each.record else "UNSOUND"
        if state != best or len(found) <= 4:
            reason = (
                each.reason if state == "UNSOUND" or len(found) <= 4 else each.reason.split("\n")[0][:150]
            )
            record = f" ({each.record})" if each.record and len(found) <= 4 else ""
            console.print(
                f"{state:8} {each.name}{record}" + (f": {reason}" if reason else ""),
                highlight=False,
                markup=False,
            )
    states = Counter(STATES[each.record.method] if each.record else "unsound" for each in found)
    names = sum(len(each.names) for each in found)
    console.print(
        f"{len(found)} texts, {names} substitutions: "
        + ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        + f"; at least {min((each.num_bindings for each in found), default=0)} instances each, "
        f"{sum(each.seconds for each in found):.0f} s of work",
        highlight=False,
    )
    if states["unsound"]:
        raise typer.Exit(1)
