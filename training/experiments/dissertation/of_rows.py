"""The dissertation's tables and figures of what is trained, by name."""

from __future__ import annotations

from collections.abc import Mapping

from training.experiments.dissertation.applied import FIGURE_4_11, STEP_TIMES
from training.experiments.dissertation.dreams import FIGURE_4_8, FIGURE_4_9, TABLE_4_3
from training.experiments.dissertation.improvements import FIGURE_4_3, FIGURE_4_7
from training.experiments.dissertation.learning import FIGURE_4_4, FIGURE_4_10
from training.experiments.dissertation.rewards import FIGURE_4_6
from training.experiments.dissertation.toy_bert import TOY_BERT
from training.experiments.experiment import Experiment

EXPERIMENTS_OF_ROWS: Mapping[str, Experiment] = {
    "fig4.3": FIGURE_4_3,
    "fig4.4": FIGURE_4_4,
    "fig4.6": FIGURE_4_6,
    "fig4.7": FIGURE_4_7,
    "fig4.8": FIGURE_4_8,
    "fig4.9": FIGURE_4_9,
    "table4.3": TABLE_4_3,
    "fig4.10": FIGURE_4_10,
    "fig4.11": FIGURE_4_11,
    "step_times": STEP_TIMES,
    "toy_bert": TOY_BERT,
}
