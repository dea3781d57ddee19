"""Command lines in the documentation: parsed, checked without running them, and run.

Checks that every program, module, file, target and option exists.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from typer.testing import CliRunner

from tests.docs.pages import ROOT
from torchrlopt.api.cli.app import app

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


class CommandError(Exception):
    """A command line that would not work."""


def split(text: str) -> list[list[str]]:
    """The words of each command; comments are left out, lines that end in a backslash joined."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def without_settings(words: Sequence[str]) -> list[str]:
    """A command without `NAME=value` in front of it."""
    rest = list(words)
    while rest and re.fullmatch(r"[A-Z_]+=\S*", rest[0]):
        rest.pop(0)
    return rest


def check(words: Sequence[str]) -> None:
    """Raises CommandError where the command could not be run as it stands."""
    program, *arguments = without_settings(words)
    if program not in _CHECKS:
        raise CommandError(f"no check for {program!r}; known are: {', '.join(_CHECKS)}")
    _CHECKS[program](arguments)


def run(words: Sequence[str], fails: bool = False) -> str:
    """What a command of this project prints, run in this process.

    Raises:
        CommandError: it fails, or does not where it has to.
    """
    program, *arguments = without_settings(words)
    if program == "torchrlopt":
        result = CliRunner().invoke(app, arguments)
        if bool(result.exit_code) != fails:
            raise CommandError(f"{shlex.join(words)}: {result.output}{result.exception!r}")
        return str(result.stdout)
    if program == "python" and arguments[0] == "-m":
        out = io.StringIO()
        with contextlib.redirect_stdout(out), _as_program(arguments[1], arguments[2:]):
            try:
                _run_module(arguments[1])
            except SystemExit as ended:  # typer's programs end so, with status 0 where all is well
                if ended.code:
                    raise CommandError(f"{shlex.join(words)}: {out.getvalue()}") from ended
        return out.getvalue()
    raise CommandError(f"{program!r} is not run here: mark the block with the reason")


def check_mention(text: str) -> None:
    """For commands in a sentence, which may lack arguments: the command and its options are there."""
    program, *arguments = text.split() or [""]
    if program == "make" and arguments:
        _check_make(arguments)
    if program == "torchrlopt":
        command, rest = _command(arguments)
        known = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
        for word in rest:
            if word.startswith("-") and word not in known:
                raise CommandError(f"{text!r}: there is no option {word}")


def _command(arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """The command of `torchrlopt` that is meant, or a group of them, and its arguments."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while rest and hasattr(command, "commands"):
        if rest[0] not in command.commands:
            raise CommandError(f"torchrlopt has no command {' '.join(arguments)!r}")
        command = command.commands[rest.pop(0)]
    return command, rest


def _check_torchrlopt(arguments: Sequence[str]) -> None:
    _parse(*_command(arguments))


def _parse(command: Any, arguments: Sequence[str]) -> None:
    """Let a command read its arguments."""
    try:
        command.make_context(command.name, list(arguments))
    except Exception as error:  # of typer's own tree, which is not public
        raise CommandError(f"{command.name} {shlex.join(arguments)}: {error}") from error


class _Parsed(Exception):  # noqa: N818 - it ends a program where it should end
    """The arguments are read: what would come next is the work itself."""


def _check_python(arguments: Sequence[str]) -> None:
    if arguments[0] == "-m":
        target, rest = arguments[1], arguments[2:]
        if target == "pytest":
            _check_pytest(rest)
            return
        spec = util.find_spec(target)
        if spec is None or spec.origin is None:
            raise CommandError(f"no module {target}")
        path = Path(spec.origin)
    else:
        target, rest = arguments[0], arguments[1:]
        path = ROOT / target
        if not path.is_file():
            raise CommandError(f"no file {target}")
    if not re.search(r"^(import|from) (typer|argparse)\b", path.read_text(encoding="utf-8"), re.MULTILINE):
        return  # it takes names of files only
    with _as_program(target, rest), _stopped_after_parsing(), contextlib.suppress(_Parsed):
        try:
            _run_module(target) if arguments[0] == "-m" else runpy.run_path(str(path), run_name="__main__")
        except SystemExit as error:
            raise CommandError(f"{shlex.join(arguments)}: its arguments are refused") from error
        raise CommandError(f"{target} reads no arguments")


def _run_module(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it has been imported before
        runpy.run_module(name, run_name="__main__")


@contextlib.contextmanager
def _as_program(name: str, arguments: Sequence[str]) -> Iterator[None]:
    with mock.patch.object(sys, "argv", [name, *arguments]), mock.patch.object(sys, "path", list(sys.path)):
        yield


@contextlib.contextmanager
def _stopped_after_parsing() -> Iterator[None]:
    """Programs read their arguments, by typer or argparse, and end there."""
    plain = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        plain(self, *args, **kwargs)
        raise _Parsed

    def run(function: Callable[..., Any]) -> None:
        own = typer.Typer(add_completion=False)
        own.command()(function)
        _parse(typer.main.get_command(own), sys.argv[1:])
        raise _Parsed

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse_args),
        mock.patch.object(typer, "run", run),
    ):
        yield


def _check_pytest(arguments: Sequence[str]) -> None:
    settings = PROJECT["tool"]["pytest"]["ini_options"]
    markers = {line.split(":")[0] for line in settings["markers"]}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "-m":
            wanted = set(re.findall(r"\w+", rest.pop(0))) - {"and", "or", "not"}
            if not wanted <= markers:
                raise CommandError(f"pytest -m {wanted}: the markers are {', '.join(sorted(markers))}")
        elif not (ROOT / word).exists():
            raise CommandError(f"pytest {word}: there is no such file")


def _check_make(arguments: Sequence[str]) -> None:
    for target in arguments:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CommandError(f"make {target}: {done.stderr.strip()}")


def _check_pip(arguments: Sequence[str]) -> None:
    extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    known = {re.split(r"[<>=\[ ]", each)[0] for own in extras.values() for each in own}
    if arguments[0] != "install":
        raise CommandError(f"pip {arguments[0]}: only installing is shown")
    for word in arguments[1:]:
        own = re.fullmatch(r"(?:torchrlopt|\.)\[([\w,]+)\]", word)
        if own and set(own[1].split(",")) <= extras.keys():
            continue
        if word not in known | {".", "-e"}:
            raise CommandError(f"pip install {word}: nothing that this project asks for")


def _check_tensorboard(arguments: Sequence[str]) -> None:
    _check_pip(["install", "tensorboard"])
    if list(arguments[:-1]) != ["--logdir"]:
        raise CommandError("tensorboard is shown with --logdir only")


def _check_source(arguments: Sequence[str]) -> None:
    if list(arguments) != [".venv/bin/activate"]:
        raise CommandError("only the environment that the Makefile makes is entered")


def _check_export(arguments: Sequence[str]) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "torchrlopt").rglob("*.py")]
    for each in arguments:
        name = each.split("=")[0]
        if not any(f'"{name}"' in source for source in sources):
            raise CommandError(f"nothing reads the environment variable {name}")


_CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "torchrlopt": _check_torchrlopt,
    "python": _check_python,
    "make": _check_make,
    "pip": _check_pip,
    "tensorboard": _check_tensorboard,
    ".": _check_source,
    "export": _check_export,
}
