"""The kernels for a matrix unit on a processor that has none: all their tests, with the unit in software."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit import test_split

IN_SOFTWARE = {**os.environ, "TORCHRLOPT_INSTRUCTIONS": "amx-in-software"}


def test_all_of_them_in_software() -> None:
    code = "from torchrlopt import _C; print(_C.kernel_has_matrix_unit())"
    asked = [sys.executable, "-c", code]
    if (
        "True"
        not in subprocess.run(asked, capture_output=True, text=True, env=IN_SOFTWARE, check=True).stdout
    ):
        pytest.skip("not with AVX2, nor with a compiler that does not know of the unit")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(test_split.__file__)],
        capture_output=True,
        text=True,
        env=IN_SOFTWARE,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
