"""The command line in this process; one of its own takes seconds to begin."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import NamedTuple
from unittest import mock

from torchrlopt.api.cli import app


class Done(NamedTuple):
    """What a command has left."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Done:
    """Run a command of `torchrlopt` to its end."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with (
        mock.patch.object(sys, "argv", ["torchrlopt", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            app.main()
        except SystemExit as end:
            status = int(end.code or 0)
    return Done(status, out.getvalue(), err.getvalue())
