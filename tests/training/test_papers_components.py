"""Components fit together and are those that the trainers use: training/papers/components/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from training.config import ROWS, Config
from training.papers.components.component import Composition, ShapeError
from training.papers.components.rows import composition
from training.train import trainer_of

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
def test_what_is_composed_is_what_the_trainer_of_the_row_runs(row: str, macros: bool, tmp_path: Path) -> None:
    config = Config.of_row(row, macros=macros, **SMALL)
    parts = {spec.name: spec.build() for spec in composition(config).specs}
    trainer: Any = trainer_of(config, tmp_path)

    def shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in module.state_dict().items()}

    assert shapes(parts["encoder"]) == shapes(trainer.controller.encoder)
    assert shapes(parts["learner"][0]) == shapes(trainer.controller)
    assert parts["collector"]._given == trainer.collector._given
    if "world model" in parts:
        assert shapes(parts["world model"]) == shapes(trainer.model)
        assert shapes(parts["controller"]) == shapes(trainer.policy)
        assert type(parts["memory"]) is type(trainer.replay)
    else:
        heads = shapes(trainer.controller)
        own = shapes(parts["controller"])
        assert own == {name: shape for name, shape in heads.items() if not name.startswith("encoder.")}
