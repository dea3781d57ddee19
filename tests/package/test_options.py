"""Options: validation and messages."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.crosses import nightly_but
from torchrlopt.errors import OptionsError
from torchrlopt.options import Options


def test_defaults_are_valid_and_frozen() -> None:
    options = Options()
    assert options == Options.from_dict({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ({"serarcher": "beam"}, "'searcher'"),
        ({"budget": 3}, "'budget_ms'"),
        ({"searcher": "greddy"}, "'greedy'"),
        ({"weights": "Frozen"}, "'frozen'"),
        ({"on_error": "rise"}, "'raise'"),
        ({"executor": "inducter"}, "'inductor'"),
    ],
)
def test_unknown_name_or_value_names_the_nearest(given: dict[str, Any], nearest: str) -> None:
    with pytest.raises(OptionsError, match=f"did you mean {nearest}"):
        Options.from_dict(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": True}, "wrong type; expected: int"),
        ({"verify": 1}, "wrong type; expected: bool"),
        ({"alpha": "1.1"}, "wrong type; expected: float"),
        ({"budget_steps": 1.5}, "wrong type; expected: int"),
        ({"save_dir": 3}, "wrong type; expected: str"),
        ({"weights": ["check"]}, "no such value"),
        ({"alpha": 0.9}, "out of range; expected: 1 to 100"),
        ({"budget_ms": -1}, "out of range"),
        ({"budget_ms": float("inf")}, "finite"),
        ({"min_gain": 1.5}, "out of range"),
        ({"agent": 3}, "wrong type; expected: str"),
        ({"searcher": "beam", "agent": "agent.safetensors"}, "agent has no effect on this searcher"),
    ],
)
def test_bad_values_raise(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        Options.from_dict(given)
    with pytest.raises(OptionsError):
        Options(**given)


def test_int_is_taken_for_float() -> None:
    assert Options(budget_ms=5).budget_ms == 5.0
    assert isinstance(Options(budget_ms=5).budget_ms, float)


def test_search_key_holds_what_changes_the_plan() -> None:
    base = Options()
    for name, value in {
        "searcher": "beam",
        "numerics": "strict",
        "seed": 1,
        "budget_ms": 1.0,
        "alpha": 2.0,
    }.items():
        assert Options(**{name: value}).search_key() != base.search_key()
    for name, value in {"min_gain": 0.5, "on_error": "raise", "cache": False, "verify": False}.items():
        assert Options(**{name: value}).search_key() == base.search_key()


@pytest.mark.parametrize(
    "value", nightly_but(["AVX2"], ["AVX2", "Avx512", "NONE", "sse4", "avx512bw", " avx2"])
)
def test_an_unknown_limit_of_instructions_is_refused(value: str) -> None:
    """By whoever makes options, as an option is; importing the package and other uses of it go on."""
    code = (
        "import torch, torchrlopt\n"
        "try:\n"
        "    torchrlopt.optimise(torch.nn.Linear(4, 4), (torch.zeros(1, 4),))\n"
        "except torchrlopt.errors.OptionsError as error:\n"
        "    print(error)\n"
    )
    given = {**os.environ, "TORCHRLOPT_INSTRUCTIONS": value}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=given, check=True, timeout=300
    )
    assert "TORCHRLOPT_INSTRUCTIONS has no such value" in done.stdout
    assert "avx512, avx2, none" in done.stdout
    assert repr(value)[1:-1] in done.stdout


@pytest.mark.parametrize(
    "value", nightly_but(["avx2", "none"], ["", "avx512", "avx2", "none", "amx-in-software"])
)
def test_limits_of_instructions(value: str) -> None:
    given = {**os.environ, "TORCHRLOPT_INSTRUCTIONS": value}
    code = "from torchrlopt.options import Options; Options()"
    subprocess.run([sys.executable, "-c", code], env=given, check=True, timeout=300)
