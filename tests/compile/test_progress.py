"""The progress line on the terminal: torchrlopt/compile/progress.py."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from torchrlopt.compile.progress import progress

TRIES = (
    "from torchrlopt.compile.progress import progress\n"
    "with progress('trying', 2) as tell:\n"
    "    tell('eager'); tell('inductor'); print('the user prints')"
)


def test_nothing_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("trying", 2) as tell:
        tell("eager")
    assert capfd.readouterr() == ("", "")
    run = subprocess.run([sys.executable, "-c", TRIES], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("the user prints\n", "")


def test_a_bar_on_a_terminal_that_is_gone_at_the_end() -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    run = subprocess.run(
        [sys.executable, "-c", TRIES], stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True
    )
    os.close(theirs)
    shown = io.BytesIO()
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown.write(part)
    os.close(ours)
    assert run.stdout == b"the user prints\n"
    text = shown.getvalue().decode()
    assert "trying: inductor" in text
    assert "1/2" in text
    assert text.rstrip().endswith("\x1b[2K") or "\x1b[1A" in text, "the line is taken away again"
