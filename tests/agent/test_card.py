"""Claims about the shipped agents agree with their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.agent_cases import LIBRARY
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.searcher_table import agent_names
from training.config import Config

ROWS = sorted(set(agent_names()) - {"agent"})
CARD = catalogue.FOLDER / "CARD.md"
PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def _words(path: Path) -> str:
    """The text with lines that a backslash divides made one, and with single spaces."""
    return " ".join(path.read_text(encoding="utf-8").replace("\\\n", " ").split())


@pytest.mark.parametrize("path", [CARD, PAGE], ids=["card", "page"])
@pytest.mark.parametrize("row", ROWS)
def test_the_commands_are_those_that_made_the_agents(row: str, path: Path) -> None:
    metadata = checkpoint.load(catalogue.FOLDER / f"{row}.safetensors", LIBRARY).metadata
    assert f"{Config.from_json(metadata['config']).command()} --out runs/{row} " in _words(path)


@pytest.mark.parametrize("row", ROWS)
def test_a_checkpoint_says_what_it_is(row: str) -> None:
    metadata = checkpoint.load(catalogue.FOLDER / f"{row}.safetensors", LIBRARY).metadata
    assert metadata["row"] == row
    assert metadata["kind"] == ("latent" if row.startswith("wm") else "candidates")
    assert int(metadata["updates"]) > 0
    for held_out in ("separable_cell", "recurrent_cell"):
        assert held_out in metadata["manifest"]


def test_the_card_says_what_holds_by_construction_and_whom_the_agent_follows() -> None:
    words = _words(CARD)
    assert "1.000 by construction" in words
    assert f"The searcher `agent` follows `{catalogue.DEFAULT_ROW}`." in words


def test_a_command_names_what_is_other_than_usual() -> None:
    assert Config.of_row("wm").command() == "python -m training.train --row wm"
    given = Config.of_row("plan", max_steps=48, learning_rate=5e-4)
    assert given.command() == "python -m training.train --row plan --learning-rate 0.0005 --max-steps 48"
