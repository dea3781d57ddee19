"""Rows that are trained on measured times, and what they are called in reports beside those that are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.dream_trainer import RANDOM_UPDATES

#: By row, arguments beside those of every run on one graph; of 16 episodes an update.
LEARNERS: Mapping[str, Mapping[str, Any]] = {
    "mf": {},
    "wm": {"model_batches": 20, "dream_batch": 128, "dream_updates": 5},
    "wm_plus": {"model_batches": 20, "dream_batch": 128, "dream_updates": 5},
}
#: The random ones of a world model, and two in which it learns.
LEAST_UPDATES = RANDOM_UPDATES + 2
FAILED = 10.0  # what is told of a graph that the executor does not run, as a share of the first one's time
TITLES: Mapping[str, str] = {
    "best_first": "best first, measured",
    "price": "top k by price",
    "belief": "model of prices",
    "mf": "MF",
    "wm": "WM",
    "wm_plus": "WM+",
}
