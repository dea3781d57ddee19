"""Which agent a searcher follows: the user's own, or one of those that come with the package."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.agent.search.searcher import AgentSearcher, SearcherWithoutAgent
from torchrlopt.errors import AgentError
from torchrlopt.options import Options
from torchrlopt.plan.search import Searcher
from torchrlopt.searcher_table import agent_names

logger = logging.getLogger("torchrlopt")

FOLDER = Path(__file__).parent / "shipped"
VARIABLE = "TORCHRLOPT_AGENT"
#: The row that the searcher "agent" follows: the one that did best on graphs that training never saw.
DEFAULT_ROW = "plan"


def path_of(options: Options) -> Path:
    """The checkpoint that these options mean: `agent`, else TORCHRLOPT_AGENT, else one of the package."""
    if options.agent is not None:
        return Path(options.agent)
    own = os.environ.get(VARIABLE)
    if own and options.searcher == "agent":
        return Path(own)
    row = DEFAULT_ROW if options.searcher == "agent" else options.searcher
    return FOLDER / f"{row}.safetensors"


def digest(options: Options) -> str:
    """The manifest (with the SHA-256) of the checkpoint that is meant; empty where there is none."""
    if options.searcher not in agent_names():
        return ""
    try:
        return checkpoint.manifest_text(path_of(options))
    except (OSError, ValueError):
        return ""


def make_searcher(options: Options, library: _C.Library) -> Searcher:
    """`searcher_of`, or greedy and beam, with a warning, where the agent cannot be loaded.

    Raises:
        AgentError: the agent cannot be loaded, and the options ask for errors (`on_error="raise"`).
    """
    try:
        return searcher_of(options, library)
    except AgentError as error:
        if options.on_error == "raise":
            raise
        logger.warning("there is no agent, greedy and beam are used instead: %s", error)
        return SearcherWithoutAgent()


def searcher_of(options: Options, library: _C.Library) -> Searcher:
    """The searcher that follows the agent of these options; read once for each file and library.

    Raises:
        AgentError: see `checkpoint.load`.
    """
    return _loaded(path_of(options).absolute(), digest(options), library, options.searcher)


@functools.lru_cache(maxsize=8)
def _loaded(path: Path, manifest: str, library: _C.Library, name: str) -> AgentSearcher:
    """`manifest` is part of the key: a file that was replaced is read again."""
    return AgentSearcher(checkpoint.load(path, library), name)
