"""Components fit together and are those that the trainers use: training/papers/components/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from training.config import ROWS, Config
from training.papers.components.component import Array, Composition, ShapeError
from training.papers.components.rows import composition
from training.train import trainer_of
from training.world.latent_controller import MODELS

SMALL = {"width": 16, "rounds": 2, "max_steps": 3, "epochs": 1, "model_epochs": 1, "dream_horizon": 2}


def test_components_that_do_not_fit_are_refused_when_they_are_composed() -> None:
    parts = composition(Config.of_row("mf", **SMALL))
    wide = composition(Config.of_row("mf", **{**SMALL, "width": 32}))["encoder"]
    others = tuple(wide if spec.name == "encoder" else spec for spec in parts.specs)
    with pytest.raises(ShapeError, match=r"controller takes another nodes than encoder .*16\].*32\]"):
        Composition("mf", others, parts.outside)
    alone = tuple(spec for spec in parts.specs if spec.name != "encoder")
    with pytest.raises(ShapeError, match="controller takes another nodes than any component gives"):
        Composition("mf", alone, parts.outside)


@pytest.mark.parametrize(("row", "macros"), [*((row, False) for row in ROWS), ("wm", True)])
def test_the_sizes_of_a_row_are_those_of_its_trainer(row: str, macros: bool, tmp_path: Path) -> None:
    config = Config.of_row(row, macros=macros, **SMALL)
    parts = composition(config)
    trainer: Any = trainer_of(config, tmp_path)
    if row in MODELS:
        assert parts["encoder"].gives["features"] == Array(("B", len(trainer.model.feature_std)))
        assert parts["world model"].gives["latent"] == Array(("B", trainer.model.state_width))
    else:
        assert parts["encoder"].gives["nodes"] == Array(("N", trainer.controller.config.width))
