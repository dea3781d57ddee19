"""Random calls of csrc/kernels under sanitizers; `.ci/sanitize kernels` runs 20,000 of them."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = 1000


@pytest.mark.nightly
def test_a_thousand_calls() -> None:
    """All kernels and dtypes, also those of AVX-512 and of the matrix unit, which are in software there."""
    if shutil.which("g++") is None or shutil.which("make") is None:
        pytest.skip("no g++ or make")
    if platform.machine() != "x86_64" or "avx2" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("the kernels are for x86 with AVX2")
    done = subprocess.run(
        [ROOT / ".ci/sanitize", "kernels", str(CASES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    for level in ("avx2", "avx512", "amx-in-software"):
        assert f"{level}: {(CASES + 2) // 3} cases" in done.stdout
