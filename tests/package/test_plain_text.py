"""Texts from files are displayed literally: no markup, no terminal control sequences."""

from __future__ import annotations

import io
import traceback
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from rich.table import Table

import torchrlopt
from tests.package.test_floors import PACKAGE
from torchrlopt.api.cli import app
from torchrlopt.compile.fallback import log_traceback
from torchrlopt.console import Console
from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.plain_text import printable

#: Sets the title, writes to the clipboard, clears the screen, is shown backwards, goes over the line before.
STEERING = "\x1b]0;title\x07\x1b]52;c;eA==\x07\x1b[2J\u202egnp\u202c\rgone\x08\x9b31m\ud800"
MARKUP = "[red]Foo[/red] [/] [link=file:///x]y[/link] :boom:"


def is_harmless(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" for each in text)


@pytest.mark.parametrize("text", ["", "plain", "größe\n\ttab", "日本", "🙂"])
def test_text_stays(text: str) -> None:
    assert printable(text) == text


def test_what_steers_a_terminal_is_escaped() -> None:
    shown = printable(STEERING)
    assert is_harmless(shown)
    assert shown.startswith(r"\x1b]0;title\x07")
    assert printable(shown) == shown


@pytest.mark.parametrize("text", [MARKUP, STEERING])
def test_tables_and_lines_are_plain(text: str) -> None:
    out = io.StringIO()
    console = Console(file=out, width=400)
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    console.print(table)
    console.print(text, highlight=False)
    assert is_harmless(out.getvalue())
    assert out.getvalue().count(printable(text)) == 4


def test_only_the_plain_console_is_used() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "rich.console" in path.read_text(encoding="utf-8")]
    assert [path.name for path in files] == ["console.py"]


def test_messages_of_errors_are_plain() -> None:
    assert is_harmless(str(UnsupportedError("no", where=STEERING, got=STEERING)))


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A file whose operator, domain and names are such texts."""
    text = MARKUP + STEERING.replace("\ud800", "")
    nodes = [
        helper.make_node("Relu", [text], ["r"], name=text),
        helper.make_node(text, ["r"], ["f"], domain="my"),
        helper.make_node("Neg", ["f"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [4]) for each in (text, "y", "f")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:2], value_info=infos[2:])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("my", 1)]
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString())
    return path


def test_a_report_of_a_file_is_plain(hostile: Path, tmp_path: Path) -> None:
    report = torchrlopt.optimise_onnx(hostile, tmp_path / "out.onnx", cache=False, verify=False)
    assert any("[red]Foo[/red]" in name for name in report.opaque)
    assert is_harmless(str(report))
    report.save(tmp_path / "page.html")
    assert onnx.load(tmp_path / "out.onnx").graph.node[1].op_type == onnx.load(hostile).graph.node[1].op_type


def test_errors_of_the_command_line_are_plain(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["torchrlopt", "explain", str(hostile)])
    with pytest.raises(SystemExit):
        app.main()
    shown = capsys.readouterr().err
    assert "Foo" in shown
    assert is_harmless(shown)


def test_tracebacks_are_plain(hostile: Path, tmp_path: Path) -> None:
    """Their causes are other people's errors, with text of the file as it is."""
    proto = onnx.load(hostile)
    proto.graph.node[0].op_type = proto.graph.node[1].op_type  # an operator that ONNX's checker does not know
    path = tmp_path / "wrong.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelFormatError) as raised:
        torchrlopt.optimise_onnx(path, tmp_path / "out.onnx", cache=False)
    shown = "".join(traceback.format_exception(raised.value))
    assert "Foo" in shown
    assert is_harmless(shown)


def test_the_log_is_plain(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "torchrlopt")
    error = UnsupportedError("it is not read")
    error.__cause__ = ValueError("\x1b[31mtext of a file")
    log_traceback(error)
    assert "text of a file" in caplog.text
    assert is_harmless(caplog.text)
