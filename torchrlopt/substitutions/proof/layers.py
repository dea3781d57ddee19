"""Checks substitutions layer by layer: construction, exact evaluation, Z3; in parallel processes."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from multiprocessing import active_children, get_context

from torchrlopt import _C
from torchrlopt.errors import UnsupportedError
from torchrlopt.processes import end_with_parent
from torchrlopt.substitutions.proof.records import Record, axioms_hash, read_record, text_hash

PRIME = 2**31 - 1
"""The modulus of the exact evaluation."""
_POLL_S = 0.2


@dataclass(frozen=True)
class Effort:
    """How thoroughly to check one substitution.

    Attributes:
        bindings: number of instances of shapes and attributes to evaluate.
        seeds: random data sets per instance.
        instances: number drawn to find the cases of a proof; 0 skips the proof.
        timeout_s: processor time after which a proof is given up. Z3 itself is limited by steps, not by time.
    """

    bindings: int = 200
    seeds: int = 2
    instances: int = 24
    timeout_s: float = 60.0


THOROUGH = Effort(bindings=256, seeds=4, instances=0)


@dataclass(frozen=True)
class Checked:
    """Check results for the substitutions of one text.

    Attributes:
        name: of the text, the first of `names`.
        is_sound: no instance differed; also False if too few instances were found.
        record: for the text; None if it is not sound.
        reason: why it is not sound or not proved.
        num_bindings: smallest number of instances evaluated for one of the names.
        contexts: those in which all of the names were tried.
    """

    name: str
    names: tuple[str, ...]
    is_sound: bool
    record: Record | None
    reason: str
    num_bindings: int
    contexts: tuple[str, ...]
    seconds: float


def require_z3() -> None:
    """Raises UnsupportedError if Z3 is not installed; only proofs need it."""
    if importlib.util.find_spec("z3") is None:
        raise UnsupportedError("proofs need Z3, which is not installed", todo="pip install -e '.[prove]'")


def check_texts(
    text: str, texts: Sequence[Sequence[str]], effort: Effort, jobs: int | None = None
) -> Iterator[Checked]:
    """Checks the substitutions of some texts; yields results as they complete.

    Args:
        text: of the library that contains them.
        texts: names of the substitutions, grouped by text.
        effort: how thoroughly to check.
        jobs: number of worker processes, which Ctrl-C or closing the iterator ends at once; None checks in
            this process, where Z3 may delay Ctrl-C until a proof is done.

    Raises:
        UnsupportedError: a proof is requested and Z3 is not installed.
    """
    if effort.instances:
        require_z3()
    if jobs is None or not texts:
        for names in texts:
            yield check_one(text, tuple(names), effort)
        return
    others = set(active_children())
    # Spawn: a forked process would inherit locks held by this one's threads.
    with ProcessPoolExecutor(
        min(jobs, len(texts)), mp_context=get_context("spawn"), initializer=_leave_interrupts
    ) as pool:
        try:
            todo = {pool.submit(check_one, text, tuple(names), effort) for names in texts}
            while todo:
                # Poll: Python handles Ctrl-C in this thread only, but the system may deliver it to another.
                done, todo = wait(todo, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(active_children()) - others:
                worker.terminate()
            raise


def _leave_interrupts() -> None:
    """Ignores Ctrl-C, which reaches the whole process group: the parent ends its workers, with one message.

    A worker that the parent was just starting and does not know yet ends when the parent does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def default_jobs() -> int:
    """One per processor."""
    return os.cpu_count() or 1


@cache
def _library(text: str) -> _C.Library:
    return _C.Library(text)


def check_one(text: str, names: tuple[str, ...], effort: Effort) -> Checked:
    """Checks the substitutions of one text."""
    try:
        from torchrlopt import _tools  # not loaded by the product
    except ImportError as error:
        raise UnsupportedError(
            "substitutions are checked by a module that wheels lack",
            todo="clone the repository and pip install -e it",
        ) from error
    start = time.monotonic()
    library = _library(text)
    assumed = read_record(library, names[0])
    results = [_tools.verify(library, name, effort.bindings, effort.seeds) for name in names]
    contexts = set.intersection(*(set(result["contexts"]) for result in results))
    fewest = min(result["num_bindings"] for result in results)
    wrong = [
        f"{n}: {r['reason']}\n{r['counter_example']}"
        for n, r in zip(names, results, strict=True)
        if not r["ok"]
    ]

    def checked(record: Record | None, reason: str) -> Checked:
        return Checked(
            names[0], names, not wrong, record, reason, fewest, tuple(sorted(contexts)),
            time.monotonic() - start,
        )  # fmt: skip

    if wrong:
        return checked(None, wrong[0])
    hash_ = text_hash(library, names[0])
    if assumed is not None and assumed.method == "assumed":
        return checked(Record("assumed", hash_, assumed.details), assumed.details)
    is_field = all(result["exact_field"] for result in results)
    bound = f"2^-{_bits(library, names[0], effort.seeds)}" if is_field else "float64"
    tested = Record("evaluation", hash_, f"bindings={fewest} bound={bound}")
    if not effort.instances:
        return checked(tested, "")
    from torchrlopt.substitutions.proof.prover import prove  # needs Z3

    proofs = [prove(library, name, effort.instances, effort.timeout_s) for name in names]
    failed = next((proof for proof in proofs if not proof.is_proved), None)
    if failed is not None:
        return checked(tested, f"{failed.name}: {failed.reason}")
    members = sorted({count for proof in proofs for count in proof.members})
    details = (
        f"axioms={axioms_hash()} cases={sum(proof.num_cases for proof in proofs)} "
        f"instances={sum(proof.num_instances for proof in proofs)}"
    )
    if members:
        details += f" members={','.join(map(str, members))}"
    return checked(Record("z3", hash_, details), "")


def _bits(library: _C.Library, name: str, seeds: int) -> int:
    """A wrong result passes the random data of an instance with a probability of at most 2^-bits.

    Each output is a polynomial in the inputs whose degree at most doubles with each line. At a random point
    modulo the prime, a non-zero polynomial vanishes with a probability of degree / prime, per seed.
    """
    lines = sum(1 for line in library.text(name).splitlines() if " = " in line and "(" in line)
    return math.floor(seeds * (math.log2(PRIME) - min(lines, 24)))
