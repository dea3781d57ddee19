"""Options: validation and messages."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import torchrlopt
from tests.crosses import nightly_but
from torchrlopt.api.cli.app import app
from torchrlopt.errors import OptionsError
from torchrlopt.options import (
    DebugOptions,
    LoweringOptions,
    Options,
    OptionsDict,
    PrecisionOptions,
    SearchOptions,
    TimingOptions,
)


def test_defaults_are_valid_and_frozen() -> None:
    options = Options()
    assert options == Options.from_dict({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.search.seed = 3  # type: ignore[misc]  # it is frozen


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
        ({"min_gain": 10**400}, "finite"),
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
    for options in (SearchOptions(budget_ms=5), Options(budget_ms=5).search):
        assert options.budget_ms == 5.0
        assert isinstance(options.budget_ms, float)


@pytest.mark.parametrize(
    "given",
    [
        {"search": {"searcher": "beam", "beam_width": 4}, "lowering": {"weights": "live"}, "cache": False},
        {"searcher": "beam", "search": {"beam_width": 4}, "weights": "live", "lowering": {"cache": False}},
    ],
)
def test_options_are_given_by_name_or_by_group(given: dict[str, Any]) -> None:
    flat = {"searcher": "beam", "beam_width": 4, "weights": "live", "cache": False}
    assert Options.from_dict(given) == Options(**given) == Options(**flat)
    assert Options(**flat) == Options(
        search=SearchOptions(searcher="beam"), beam_width=4, weights="live", cache=False
    )
    assert Options(**flat).as_dict() == Options().as_dict() | flat


def test_what_several_stages_read_is_the_same_in_all_groups() -> None:
    options = dataclasses.replace(Options(search={"numerics": "strict"}), cache=False)
    assert options.search.numerics == options.lowering.numerics == options.numerics == "strict"
    assert not any(each.cache for each in (options, options.search, options.lowering))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"search": {"beam_with": 4}}, "where: options of search; .*did you mean 'beam_width'"),
        ({"search": {"min_gain": 0.1}}, "unknown option 'min_gain'; where: options of search"),
        ({"search": 4}, "option search has the wrong type; expected: a mapping of .*searcher"),
        ({"search": {"alpha": 0.9}}, "option alpha is out of range; expected: 1 to 100"),
        ({"seed": 1, "search": {"seed": 2}}, "option seed is given twice; got: 1, 2"),
        ({"timing": {"measure": False}, "executor": "auto"}, "the executor is chosen by measurement"),
        ({3: 4}, "unknown option 3"),
    ],
)
def test_a_bad_group_raises(given: dict[Any, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        Options.from_dict(given)


def test_every_entry_takes_groups(tmp_path: Path) -> None:
    """As it takes flat names: unknown ones are refused with the same words."""
    model, x, path = torch.nn.Linear(4, 4).eval(), torch.zeros(1, 4), tmp_path / "in.onnx"
    path.touch()
    groups = {"search": {"searcher": "gredy"}, "timing": {"measure": False}}
    command = ["optimise-onnx", str(path), str(path), "--option", 'search={"searcher": "gredy"}']
    for enter in (
        lambda: torchrlopt.optimise(model, (x,), **groups),
        lambda: torchrlopt.optimise_onnx(path, path, **groups),
        lambda: torch.compile(model, backend="rlopt", options=groups)(x),
        lambda: CliRunner().invoke(app, command, catch_exceptions=False),
    ):
        with pytest.raises(Exception, match="did you mean 'greedy'"), torch.no_grad():
            enter()


def test_search_key_holds_what_changes_the_plan() -> None:
    base = Options()
    assert sorted(base.search_key()) == [
        "alpha", "beam_width", "budget_ms", "budget_steps", "cuda_graphs", "exclude", "executor",
        "executor_options", "measure_plans", "numerics", "prices", "searcher", "seed", "weights",
    ]  # fmt: skip
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


def test_a_group_given_as_its_dataclass_means_what_it_says() -> None:
    search = SearchOptions(numerics="strict", cache=False, beam_width=3)
    options = Options(search=search)
    assert (
        options
        == Options(numerics="strict", cache=False, beam_width=3)
        == Options.from_dict({"search": search})
    )
    assert options.lowering.numerics == "strict"
    assert Options.from_dict(dataclasses.asdict(options)) == options
    assert dataclasses.replace(options, verify=False).search == options.search
    with pytest.raises(OptionsError, match="numerics is given twice"):
        dataclasses.replace(Options(), search=search)


def test_the_types_for_editors_are_those_of_the_options() -> None:
    """A misspelt option is a type error, so each has to be declared for type checkers as well."""
    declared = typing.get_type_hints(OptionsDict)
    options = {
        **Options().as_dict(),
        **dict.fromkeys(("search", "timing", "lowering", "precision", "debug", "mode")),
    }
    assert set(declared) == set(options)
    for kind in (Options, SearchOptions, TimingOptions, LoweringOptions, PrecisionOptions, DebugOptions):
        for name, hint in typing.get_type_hints(kind).items():
            assert declared[name] in (hint, Mapping[str, Any] | hint), name


def test_both_spellings_of_the_command_and_the_short_help() -> None:
    for command in (["optimise"], ["optimize"], ["optimise-onnx"], ["optimize-onnx"], ["-h"]):
        found = CliRunner().invoke(app, [*command, "-h"])
        assert (found.exit_code, "Usage" in found.output) == (0, True)
