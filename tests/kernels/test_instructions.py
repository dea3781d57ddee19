"""`TORCHRLOPT_INSTRUCTIONS`: which kernels a limit leaves, also in software, and what is cached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.kernels import (
    test_attention_kernel,
    test_few_channels,
    test_guarded_memory,
    test_int8,
    test_matrix_unit,
)
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect


def limited(limit: str, *arguments: str) -> str:
    """What a Python with this limit prints."""
    environment = {**os.environ, "TORCHRLOPT_INSTRUCTIONS": limit}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def kinds(limit: str) -> dict[str, Any]:
    code = (
        "import json, torch\n"
        "from torchrlopt import _C\n"
        "from torchrlopt.executors.eager.kernels import indirect\n"
        "from torchrlopt.options import Options; Options()\n"  # it refuses an unknown limit
        "half = torch.bfloat16\n"
        "found = {'unit': _C.kernel_has_matrix_unit()}\n"
        "found['half'] = ['bfloat16' in _C.kernel_dtypes(), indirect.kernels(half) is not None]\n"
        "found['int8'] = [indirect.has_int8(each) for each in (torch.float32, half, torch.float64)]\n"
        "print(json.dumps(found))"
    )
    return json.loads(limited(limit, "-c", code))


@pytest.mark.parametrize("limit", ["none", "avx2", "avx512"])
def test_a_limit_leaves_out_what_lies_beyond_it(limit: str) -> None:
    found = kinds(limit)
    assert not found["unit"]
    if limit != "avx512":
        assert not any(found["half"] + found["int8"])
    elif indirect.kernels(torch.bfloat16) is not None:
        assert all(found["half"])


def test_all_of_the_matrix_unit_in_software() -> None:
    limit = "amx-in-software"
    found = kinds(limit)
    if not found["unit"]:
        pytest.skip("not with AVX2, nor with a compiler that does not know of the unit")
    has_half = indirect.kernels(torch.bfloat16) is not None
    assert found["half"] == [has_half, has_half], "they need the processor's own instructions"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # Attention and first convolutions of bfloat16 have products of the unit, too.
    modules = test_matrix_unit, test_int8, test_attention_kernel, test_few_channels, test_guarded_memory
    files = [str(each.__file__) for each in modules]
    assert "passed" in limited(limit, "-m", "pytest", *options, *files)


@pytest.mark.nightly
def test_what_was_measured_with_other_kernels_is_not_used() -> None:
    code = (
        "import torch; from torchrlopt.machine import device; print(device.fingerprint(torch.device('cpu')))"
    )
    if not _C.kernel_instructions():
        pytest.skip("no kernels for this processor")
    found = [limited(limit, "-c", code) for limit in ("", "avx2", "none")]
    assert found[2] not in found[:2]
    if _C.kernel_instructions() != "avx2":
        assert found[0] != found[1]
