"""The programs in examples/, run like a user does: in a separate process, with the default options."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.crosses import nightly_but

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))

#: What each says at its end.
LAST_WORDS = {
    "accelerate_loop": "all as by the model",
    "diffusion": "first image",
    "dynamic_batch": "phases",
    "generate": "32 tokens: original",
    "lightning_predict": "all as by the model",
    "multi_lora": "a changed adapter is seen at the next call",
    "onnx_file": "ONNX Runtime gives what the model gives",
    "sentence_encoder": "first call",
    "server": "all as by the model",
    "vision": "original",
}

#: What each needs besides torchrlopt.
NEEDS = {
    "accelerate_loop": ["accelerate"],
    "diffusion": ["diffusers", "transformers"],
    "generate": ["transformers"],
    "lightning_predict": ["lightning"],
    "onnx_file": ["onnxruntime"],
    "sentence_encoder": ["sentence_transformers", "transformers"],
    "server": ["fastapi", "httpx"],
}


def test_every_example_is_run() -> None:
    assert sorted(LAST_WORDS) == EXAMPLES


@pytest.mark.parametrize("name", nightly_but(["vision"], EXAMPLES))
def test_example(name: str, tmp_path: Path) -> None:
    missing = [package for package in NEEDS.get(name, []) if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    environment = os.environ | {"TORCHRLOPT_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert LAST_WORDS[name] in done.stdout
    assert "Traceback" not in done.stderr
