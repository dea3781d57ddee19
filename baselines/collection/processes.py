"""A separate process per case, so that crashes and leftovers of one do not affect the next."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
import transformers

from baselines.collection.run import Outcome, run
from baselines.collection.table import CASES

_CONTEXT = multiprocessing.get_context("forkserver")


def prepare(threads: int) -> None:
    """Preload all imports in the server process from which the others are forked.

    Args:
        threads: of each process.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    _CONTEXT.set_forkserver_preload(["baselines.collection.warm"])


def run_apart(label: str, options: Mapping[str, Any], timeout_s: float) -> Outcome:
    """`run` in a separate process.

    Args:
        label: of the case.
        options: of the backend.
        timeout_s: the process is killed after this many seconds.
    """
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_serve, args=(label, dict(options), theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout_s):
            return _failed(label, f"no result within {timeout_s:g} s")
        outcome: Outcome = ours.recv()
        return outcome
    except EOFError:
        process.join()
        return _failed(label, f"the process ended with status {process.exitcode}")
    finally:
        process.kill()
        process.join()
        ours.close()


def _failed(label: str, detail: str) -> Outcome:
    return Outcome(label, CASES[label].architecture.family, "raised", detail=detail)


def _serve(label: str, options: dict[str, Any], reply: Connection) -> None:
    """Run a case with its output suppressed: errors are in the outcome, not on the terminal."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the file descriptors: loggers already hold references to sys.stderr
        os.dup2(nowhere, stream)
    transformers.logging.set_verbosity_error()
    logging.getLogger("torchrlopt").setLevel(logging.CRITICAL)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    reply.send(run(label, options))
    reply.close()
