"""Passes mutated files to `optimise_onnx` and to the model loader of the command line.

Failures: something in the file was executed (a marker file exists), an exception that is not one of ours, a
crash, a hang, a result that ONNX Runtime does not load although it loads the original, or numbers that differ
from the original's.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import torch

from tests.fuzz.files.bases import bases
from tests.fuzz.files.mutations import MUTATIONS, mangled
from tests.fuzz.files.texts import ORDINARY, STEERING, payloads
from tests.fuzz.kept import Case, format_case
from tests.fuzz.outcome import Outcome
from tests.onnx.test_mutations import damaged
from torchrlopt.api.cli.models import load_model
from torchrlopt.compile import check_file, fold_file
from torchrlopt.compile.rewrite_file import rewrite_file
from torchrlopt.errors import RlOptError, UnsupportedError
from torchrlopt.onnx import answers, fold_child
from torchrlopt.options import Options

_MAX_INPUT_ELEMENTS = 1 << 20  # of an input that is made to compare numbers
_FREE_SIZE = 3  # what a free size is taken to be
_REAL_PROCESS = 40  # one case in so many goes through the processes that users have, which take seconds


class FilesFuzzer:
    """Draws a file, changes it, hands it in.

    Args:
        seed: of all that is random.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._place = tempfile.TemporaryDirectory(prefix="fuzz_files.")
        self._folder = Path(self._place.name)
        self._marker = self._folder / "RAN"
        self._bases = bases(self._folder)
        self._texts = (*ORDINARY, *STEERING, *payloads(self._marker))
        onnxruntime.set_default_logger_severity(4)

    def run(self, index: int) -> Outcome:
        """Make and judge the case of that number."""
        draw = random.Random(f"{self._seed} {index}")
        content = self.changed(draw)
        kind = "processes" if index % _REAL_PROCESS == 0 else "one process"
        outcome = _judged(content, self._folder, self._marker, kind)
        if outcome.kind == "wrong":
            outcome.case = case_of(content, self._marker)
        return outcome

    def changed(self, draw: random.Random) -> bytes:
        """A file that was changed."""
        content = self._bases[draw.choice(sorted(self._bases))]
        proto = onnx.load_model_from_string(content)
        texts = [draw.choice(self._texts) for _ in range(4)] + [draw.choice(payloads(self._marker))]
        for mutation in draw.choices([*MUTATIONS], [*MUTATIONS.values()], k=draw.choice((1, 1, 1, 2, 2, 4))):
            with contextlib.suppress(IndexError, ValueError, TypeError):  # nothing of that kind is left
                mutation(proto, draw, texts)
        content = proto.SerializeToString()
        if draw.random() < 0.1:
            return damaged(content, draw.randrange(1 << 30))
        return mangled(content, draw) if draw.random() < 0.05 else content


def case_of(content: bytes, marker: Path) -> str:
    """The text that is kept of a file; the place of its marker is put in again when it is replayed."""
    return format_case("files", {"marker": str(marker)}, base64.b64encode(zlib.compress(content, 9)).decode())


def replay(case: Case) -> str:
    """How a kept file goes wrong; empty where it does not."""
    content = zlib.decompress(base64.b64decode(case.body))
    marker = Path(case.fields["marker"])
    with tempfile.TemporaryDirectory() as place:
        bases(Path(place))  # the external data
        outcome = _judged(content, Path(place), marker, "one process")
    return outcome.reason if outcome.kind == "wrong" else ""


def _judged(content: bytes, folder: Path, marker: Path, kind: str) -> Outcome:
    """What becomes of a file.

    Raises:
        Exception: one that is none of ours.
    """
    source, target = folder / "model.onnx", folder / "out.onnx"
    source.write_bytes(content)
    for path in folder.glob("out.onnx*"):
        path.unlink()
    options = Options(searcher="greedy", cache=False, on_error="raise", budget_ms=50.0)
    outcome = Outcome("right")
    with contextlib.nullcontext() if kind == "processes" else _in_one_process():
        try:
            report = rewrite_file(source, target, options)
            outcome.counts[report.kept] += 1
        except RlOptError as error:
            outcome.counts[f"refused: {type(error).__name__}"] += 1
            if target.exists():
                return dataclasses.replace(outcome, kind="wrong", reason="refused, and yet written")
            # As users have it: with a reason, and the original where it is a model at all.
            with contextlib.suppress(RlOptError):
                report = rewrite_file(
                    source, target, Options.from_dict({**options.as_dict(), "on_error": "fallback"})
                )
                if report.kept != "original" or not report.fallback_reason or not target.exists():
                    return dataclasses.replace(outcome, kind="wrong", reason="no original, or no reason")
        with contextlib.suppress(RlOptError):
            model, inputs = load_model(str(source))
            if sum(each.numel() for each in inputs) < _MAX_INPUT_ELEMENTS:
                with contextlib.suppress(RuntimeError, IndexError, ValueError):  # of the file's operators
                    torch.no_grad()(model)(*inputs)
    if marker.exists():
        marker.unlink()
        return dataclasses.replace(outcome, kind="wrong", reason="text of the file was run")
    left = [path.name for path in folder.glob(".torchrlopt.*")]
    reason = f"left behind: {left}" if left else ""
    if not reason and target.exists():
        reason = _differs(source, target, outcome)
    return dataclasses.replace(outcome, kind="wrong" if reason else "right", reason=reason)


def _differs(source: Path, target: Path, outcome: Outcome) -> str:
    """How ONNX Runtime sees the result differ from the original; empty where it does not."""
    try:
        before = _session(source)
        inputs = _inputs(before)
        expected = before.run(None, inputs)
    except Exception:  # noqa: BLE001  # its errors have no common base; what it cannot run is no measure
        outcome.counts["not run by ONNX Runtime"] += 1
        return ""
    outcome.counts["compared in ONNX Runtime"] += 1
    try:
        found = _session(target).run(None, inputs)
    except Exception as error:  # noqa: BLE001  # the same
        return f"ONNX Runtime runs the original, and not the result: {str(error).splitlines()[0][:200]}"
    for name, mine, theirs in zip((each.name for each in before.get_outputs()), found, expected, strict=True):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"output {name[:80]!r}: {mine.dtype}{mine.shape}, expected {theirs.dtype}{theirs.shape}"
        # NaN and infinities may move where operators are equal over the real numbers only.
        if np.isfinite(theirs).all() and not _is_close(mine, theirs):
            return f"output {name[:80]!r} is off by {np.abs(mine - theirs).max():.3g}"
    return ""


def _is_close(mine: Any, theirs: Any) -> bool:
    """Within a thousandth of the largest; another order of float32 sums, in a few layers, is 1e-6 off."""
    scale = max(1.0, float(np.abs(theirs).max(initial=0.0)))
    return bool(np.allclose(mine, theirs, rtol=1e-3, atol=1e-3 * scale))


def _session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _inputs(session: Any) -> dict[str, Any]:
    """Small inputs of the types that a session asks for."""
    draw = np.random.default_rng(0)
    found = {}
    for each in session.get_inputs():
        shape = [size if isinstance(size, int) else _FREE_SIZE for size in each.shape]
        if np.prod([float(size) for size in shape]) > _MAX_INPUT_ELEMENTS:
            raise ValueError("too large")
        kind = each.type.removeprefix("tensor(").removesuffix(")")
        dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
        values = draw.standard_normal(shape) if dtype.startswith("float") else draw.integers(0, 2, shape)
        found[each.name] = values.astype(dtype)
    return found


def _or_refused(main: Callable[..., bytes], data: bytes, arguments: Any) -> bytes:
    """What a process answers whose every error means that it died."""
    try:
        return main(data, arguments)
    except Exception as error:
        raise UnsupportedError("it died", got=repr(error)) from error


@contextlib.contextmanager
def _in_one_process() -> Iterator[None]:
    """All that confined processes do, where a text that is run leaves its mark: seconds become a tenth.

    But for ONNX's inference of types and its conversion, whose native code crashes.
    """
    confined = answers.run_limited

    def answer(module: str, arguments: Any, data: bytes, limits: Any, what: str) -> bytes:
        if Path(module).stem == "fold_child":
            return _or_refused(fold_child.main, data, arguments)
        if "inference" in what:
            raise UnsupportedError("not asked")
        return confined(module, arguments, data, limits, what)

    def check(_: str, arguments: Any, data: bytes, *__: Any) -> bytes:
        return check_file.main(data, arguments)

    def fold(_: str, arguments: Any, data: bytes, *__: Any) -> bytes:
        return _or_refused(fold_file.main, data, arguments)

    with contextlib.ExitStack() as stack:
        for module, instead in ((answers, answer), (check_file, check), (fold_file, fold)):
            stack.enter_context(mock.patch.object(module, "run_limited", instead))
        yield
