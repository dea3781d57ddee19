"""`torchrlopt substitutions ...`: displaying the library."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from tests.api import command
from tests.api.command import Done
from torchrlopt.api.cli.models import load_graph
from torchrlopt.errors import OptionsError, UnsupportedError
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.picture import draw

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = load_library(allow_assumed=True)
RIGHT = "substitution drop_pair\n  t = Neg(x)\n  y = Neg(t)\n=>\n  y = x\n"


def run(*arguments: str) -> Done:
    return command.run("substitutions", *arguments)


# ---- list


def test_list_json_has_a_row_for_each() -> None:
    rows = json.loads(run("list", "--json").stdout)
    assert [row["name"] for row in rows] == LIBRARY.names
    assert {tuple(row) for row in rows} == {("name", "family", "proof", "exact", "fires")}
    assert all(isinstance(row["fires"], int) and isinstance(row["exact"], bool) for row in rows)


def test_list_filters() -> None:
    rows = json.loads(run("list", "--json", "--family", "merge").stdout)
    assert rows
    assert {row["family"] for row in rows} == {"merge"}
    tested = json.loads(run("list", "--json", "--proof", "tested").stdout)
    assert {row["proof"] for row in tested} <= {"tested"}


def test_list_prints_a_table_and_counts() -> None:
    lines = run("list", "--family", "hoist").stdout.splitlines()
    assert lines[0].split() == ["name", "family", "proof", "exact", "fires"]
    assert "substitutions:" in lines[-1]


# ---- show


def test_show_prints_before_after_and_proof() -> None:
    text = run("show", "merge_matmul_shared_lhs").stdout
    assert "  y* = MatMul(x, w*)\n=>\n" in text
    for word in ("family  merge", "proof   ", "fires   "):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [(("list", "--family", "mreg"), "merge"), (("show", "merge_matmul_shared"), "merge_matmul_shared_lhs")],
)
def test_an_unknown_name_names_the_nearest(arguments: tuple[str, ...], nearest: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert f"did you mean {nearest}" in result.stderr


def test_show_draws(tmp_path: Path) -> None:
    svg, png = tmp_path / "a.svg", tmp_path / "a.png"
    result = run("show", "fold_batchnorm_into_conv", "--svg", str(svg), "--png", str(png))
    assert result.returncode == 0, result.stderr
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_picture_holds_both_sides(tmp_path: Path) -> None:
    first, again = tmp_path / "a.svg", tmp_path / "b.svg"
    draw(LIBRARY.text("merge_matmul_shared_lhs"), first)
    draw(LIBRARY.text("merge_matmul_shared_lhs"), again)
    text = first.read_text(encoding="utf-8")
    assert all(word in text for word in ("before", "after", "MatMul", "Concat", "Split"))
    assert text == again.read_text(encoding="utf-8"), "the same picture gives the same file"


def test_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"\.svg or \.png"):
        draw(LIBRARY.text("merge_matmul_shared_lhs"), tmp_path / "a.gif")
    result = run("show", "merge_matmul_shared_lhs", "--svg", str(tmp_path / "a.png"))
    assert result.returncode == 2
    assert not (tmp_path / "a.png").exists()


# ---- check and prove


def test_check_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(RIGHT, encoding="utf-8")
    result = run("check", str(path))
    assert result.returncode == 0, result.stderr
    assert "1 tested" in result.stdout


def test_check_of_a_wrong_file_shows_the_graphs(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(RIGHT.replace("=>\n  y = x", "=>\n  y = t"), encoding="utf-8")
    result = run("check", str(path))
    assert result.returncode == 1
    assert all(word in result.stdout for word in ("UNSOUND", "before:", "after:"))


def test_check_of_a_malformed_file_names_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(RIGHT.replace("Neg(t)", "Nge(t)"), encoding="utf-8")
    result = run("check", str(path))
    assert result.returncode == 1
    assert "unknown operator 'Nge'" in result.stderr
    assert "Traceback" not in result.stderr


def test_check_of_what_is_not_there() -> None:
    assert "no such file" in run("check", "nowhere/mine.txt").stderr
    assert "did you mean" in run("check", "remove_double_ne").stderr


def test_prove_writes_records(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("# mine\n" + RIGHT, encoding="utf-8")
    result = run("prove", str(path), "--write", "--bindings", "20", "--jobs", "1")
    assert result.returncode == 0, result.stderr
    assert "1 proved" in result.stdout
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# mine"
    assert lines[-1].startswith("proof z3 ")
    before = path.read_text(encoding="utf-8")
    run("prove", str(path), "--write", "--bindings", "20", "--jobs", "1")
    assert path.read_text(encoding="utf-8") == before, "the same proof has the same record"


@pytest.mark.nightly
def test_prove_does_not_write_what_is_unsound(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    wrong = RIGHT.replace("=>\n  y = x", "=>\n  y = t")
    path.write_text(wrong, encoding="utf-8")
    result = run("prove", str(path), "--write", "--jobs", "1")
    assert result.returncode == 1
    assert path.read_text(encoding="utf-8") == wrong


# ---- explain


class Two(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x)) + 1.0


def made(size: str = "3") -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Two().eval(), (torch.randn(2, int(size)),)


class Apart(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + torch.abs(x)


def made_abs() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Apart().eval(), (torch.randn(2, 3),)


def test_explain_says_where_and_why_not() -> None:
    here = "tests.api.test_cli_substitutions:made"
    assert "matches at" in run("explain", "remove_double_relu", f"{here}:4").stdout
    assert "the graph has no Conv" in run("explain", "fuse_conv_relu", here).stdout
    near = run("explain", "remove_abs_of_relu", f"{here}_abs").stdout
    assert "(Relu relu): 0 of 2 lines matched; what stands next to it" in near


def test_explain_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    inputs = (torch.randn(2, 3),)
    torch.onnx.export(Two().eval(), inputs, str(path), dynamo=True, verbose=False, optimize=False)
    assert "matches at" in run("explain", "remove_double_relu", str(path)).stdout


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nowhere.onnx", "no such file"),
        ("resnet18", "baselines.models:build:resnet18"),
        ("no_such_module:build", "cannot find"),
        ("baselines.models:build:resnet19", "no model named 'resnet19'"),
    ],
)
def test_explain_of_an_unknown_model(model: str, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        load_graph(model)
