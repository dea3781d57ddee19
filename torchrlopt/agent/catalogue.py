"""Selects the agent: the user's own, or the one that ships with the package."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.agent.search.first_plan import SearcherWithoutAgent
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.errors import AgentError
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import Searcher

logger = logging.getLogger("torchrlopt")

SHIPPED = Path(__file__).parent / "shipped" / "agent.safetensors"
VARIABLE = "TORCHRLOPT_AGENT"


def path_of(options: SearchOptions) -> Path:
    """Return the selected checkpoint: `agent`, else TORCHRLOPT_AGENT, else the one of the package."""
    if options.agent is not None:
        return Path(options.agent)
    own = os.environ.get(VARIABLE)
    return Path(own) if own else SHIPPED


def digest(options: SearchOptions) -> str:
    """Return the manifest (with the SHA-256) of the selected checkpoint; empty if there is none."""
    try:
        return checkpoint.manifest_text(path_of(options))
    except (OSError, ValueError):
        return ""


def make_searcher(options: SearchOptions, library: _C.Library) -> Searcher:
    """Return `searcher_of`; if the agent cannot be loaded, warn and fall back to greedy and local search.

    Raises:
        AgentError: the agent cannot be loaded and `on_error="raise"`.
    """
    try:
        return searcher_of(options, library)
    except AgentError as error:
        if options.on_error == "raise":
            raise
        logger.warning("there is no agent, greedy and local search are used instead: %s", error)
        return SearcherWithoutAgent()


def searcher_of(options: SearchOptions, library: _C.Library) -> Searcher:
    """Return the searcher for the agent of these options, cached by file and library.

    Raises:
        AgentError: see `checkpoint.load`.
    """
    return _loaded(path_of(options).absolute(), digest(options), library)


@functools.lru_cache(maxsize=8)
def _loaded(path: Path, manifest: str, library: _C.Library) -> AgentSearcher:
    """Load an agent; `manifest` is part of the cache key, so that a replaced file is read again."""
    return AgentSearcher(checkpoint.load(path, library))
