"""How a plan was found: by which searcher, how far it got, and how the best plan became cheaper."""

from __future__ import annotations

import dataclasses

_FINDERS = {
    "networks": "the agent's network",
    "local": "iterated local search",
    "greedy": "greedy search",
    "chains": "greedy search with chains",
    "beam": "beam search",
}


def finder_in_words(found_by: str) -> str:
    """Describe what found a plan, see `SearchRecord.found_by`."""
    return _FINDERS.get(found_by, found_by)


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """One search.

    Attributes:
        found_by: what found the kept plan: "networks" if it followed an agent's lead, "chains" for greedy
            search with chains, else the name of a searcher.
        expansions: graphs whose substitutions were listed.
        candidates: graphs that were priced.
        is_exhausted: whether nothing was left to try; otherwise a budget or its patience ended it.
        seconds: duration.
        curve: (seconds since the beginning, predicted time in milliseconds) of the best plan whenever it was
            sampled; starts with the original graph.
    """

    found_by: str
    expansions: int
    candidates: int
    is_exhausted: bool
    seconds: float
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def finder(self) -> str:
        """What found the plan, in words."""
        return finder_in_words(self.found_by)

    def __str__(self) -> str:
        end = "nothing was left to try" if self.is_exhausted else "more was left to try"
        looked = f"{self.candidates} graphs priced in {self.seconds:.2f} s"
        return f"found by {self.finder}; {looked}, {end}"
