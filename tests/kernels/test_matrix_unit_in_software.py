"""`TORCHRLOPT_INSTRUCTIONS`: matrix-unit kernels on a processor without the unit, and what is cached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels import test_matrix_unit
from torchrlopt import _C

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
    # Attention and first convolutions of bfloat16 have products of the unit, too.
    others = map(Path(__file__).with_name, ("test_attention_kernel.py", "test_few_channels.py"))
    files = map(str, (test_matrix_unit.__file__, *others))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        capture_output=True,
        text=True,
        env=IN_SOFTWARE,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


@pytest.mark.nightly
def test_what_was_measured_with_other_kernels_is_not_used() -> None:
    code = (
        "import torch; from torchrlopt.machine import device; print(device.fingerprint(torch.device('cpu')))"
    )
    if not _C.kernel_instructions():
        pytest.skip("no kernels for this processor")
    found = []
    for limit in ("", "avx2", "none"):
        given = {**os.environ, "TORCHRLOPT_INSTRUCTIONS": limit}
        asked = [sys.executable, "-c", code]
        found.append(subprocess.run(asked, capture_output=True, text=True, env=given, check=True).stdout)
    assert found[2] not in found[:2]
    if _C.kernel_instructions() != "avx2":
        assert found[0] != found[1]
