"""The programs in examples/, run like a user does: in a separate process, with the default options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crosses import nightly_but

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))

#: What each says at its end.
LAST_WORDS = {
    "dynamic_batch": "phases",
    "generate": "32 tokens: original",
    "multi_lora": "a changed adapter is seen at the next call",
    "onnx_file": "ONNX Runtime gives what the model gives",
    "vision": "original",
}


def test_every_example_is_run() -> None:
    assert sorted(LAST_WORDS) == EXAMPLES


@pytest.mark.parametrize("name", nightly_but(["vision"], EXAMPLES))
def test_example(name: str, tmp_path: Path) -> None:
    if name == "generate":
        pytest.importorskip("transformers")
    if name == "onnx_file":
        pytest.importorskip("onnxruntime")
    environment = os.environ | {"TORCHRLOPT_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert LAST_WORDS[name] in done.stdout
    assert "Traceback" not in done.stderr
