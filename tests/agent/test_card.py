"""Claims about the shipped agent agree with its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.agent_cases import LIBRARY
from torchrlopt.agent import catalogue, checkpoint
from training.config import Config

CARD = catalogue.SHIPPED.with_name("CARD.md")
PAGE = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.mark.parametrize("path", [CARD, PAGE], ids=["card", "page"])
def test_the_command_is_the_one_that_made_the_agent(path: Path) -> None:
    config = Config.from_json(checkpoint.load(catalogue.SHIPPED, LIBRARY).metadata["config"])
    assert f"{config.command()} --out runs/{config.row}\n" in path.read_text(encoding="utf-8")


def test_a_command_names_what_is_other_than_usual() -> None:
    assert Config.of_row("wm").command() == "python -m training.train --row wm"
    given = Config.of_row("plan", max_steps=48, learning_rate=5e-4)
    assert given.command() == "python -m training.train --row plan --learning-rate 0.0005 --max-steps 48"
