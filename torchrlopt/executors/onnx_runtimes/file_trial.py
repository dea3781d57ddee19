"""Checks with the installed tools that a written file loads and runs if its original does.

A file may conform to the standard and still use operator versions for which a runtime has no kernels.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from torchrlopt.errors import UnsupportedError, VerificationError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_GROSS = 1e-3
"""An error above this fraction of the largest number is not rounding.

`judge.right` measures rounding, against float64. This only checks that a conversion between opsets, which
`judge.right` does not see, preserves the meaning: errors of that kind are of order one.
"""


def try_file(
    original: Path, written: Path, feeds: Mapping[str, NDArray[Any]] | None, compares: bool = False
) -> None:
    """Check a file with the standard's full checker and with ONNX Runtime, if it is installed.

    Args:
        original: the file it was made from.
        written: the file.
        feeds: inputs by name, to run both files on; None: the files are only loaded.
        compares: whether to compare floating point outputs, except those that vary from run to run.

    Raises:
        UnsupportedError: the written file is rejected or does not run, but the original is accepted or runs.
            Or nothing can be compared.
        VerificationError: it computes something else.
    """
    reason = _refusal(written)
    if reason is not None and _refusal(original) is None:
        raise UnsupportedError("the result is not valid, although the original is", got=reason)
    if importlib.util.find_spec("onnxruntime") is not None:
        missing = _try_in_onnxruntime(original, written, feeds, compares)
    else:
        missing = "it is not installed"
    if compares and missing is not None:
        raise UnsupportedError(
            "the conversion cannot be checked",
            expected="that ONNX Runtime runs the original",
            got=missing,
            todo="install onnxruntime, or convert the model with onnx.version_converter",
        )


def _try_in_onnxruntime(
    original: Path, written: Path, feeds: Mapping[str, NDArray[Any]] | None, compares: bool
) -> str | None:
    """See `try_file`; returns why the original was not run, or None if it was."""
    before, refusal = _opened(original)
    if before is None:
        return refusal
    after, refusal = _opened(written)
    if after is None:
        raise UnsupportedError("ONNX Runtime loads the original, but not the result", got=refusal)
    if feeds is None or set(feeds) < {value.name for value in before.get_inputs()}:
        return "an input is of no type that numpy has"
    expected, refusal = _results(before, feeds)
    if expected is None:
        return refusal
    got, refusal = _results(after, feeds)
    if got is None:
        raise UnsupportedError("ONNX Runtime runs the original, but not the result", got=refusal)
    if compares:
        again, _ = _results(before, feeds)
        names = [value.name for value in before.get_outputs()]
        for name, *arrays in zip(names, expected, again or expected, got, strict=True):
            _compare(name, *arrays)
    return None


def _refusal(path: Path) -> str | None:
    """Why the standard's checker, including type inference, rejects a file; None if it accepts it."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # noqa: BLE001 - its errors have no common base
        return str(error)
    return None


def _opened(path: Path) -> tuple[InferenceSession | None, str]:
    """A session, or why there is none."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return InferenceSession(str(path), options, providers=["CPUExecutionProvider"]), ""
    except Exception as error:  # noqa: BLE001 - its errors have no common base
        return None, str(error)


def _results(session: InferenceSession, feeds: Mapping[str, NDArray[Any]]) -> tuple[list[Any] | None, str]:
    """The outputs, or why there are none."""
    wanted = {value.name for value in session.get_inputs()}
    try:
        found = session.run(None, {name: array for name, array in feeds.items() if name in wanted})
        return list(found), ""
    except Exception as error:  # noqa: BLE001 - its errors have no common base
        return None, str(error)


def _compare(name: str, old: Any, again: Any, new: Any) -> None:
    """Compare shape and dtype exactly, floating point numbers roughly."""
    if not isinstance(old, np.ndarray):
        return
    if not isinstance(new, np.ndarray) or (old.dtype, old.shape) != (new.dtype, new.shape):
        raise VerificationError(
            "an output has another type in ONNX Runtime",
            where=name,
            expected=(old.dtype, old.shape),
            got=(new.dtype, new.shape) if isinstance(new, np.ndarray) else type(new).__name__,
        )
    if old.dtype.kind != "f" or not np.array_equal(old, again, equal_nan=True):
        return
    usable = np.isfinite(old) & np.isfinite(new)
    if not np.array_equal(np.isfinite(old), np.isfinite(new)):
        raise VerificationError("NaN or infinite elements differ in ONNX Runtime", where=name)
    wide_old, wide_new = old[usable].astype(np.float64), new[usable].astype(np.float64)
    if wide_old.size and np.abs(wide_old - wide_new).max() > _GROSS * np.abs(wide_old).max():
        raise VerificationError(
            "the result computes other numbers in ONNX Runtime",
            where=name,
            expected=f"within {_GROSS} of the largest number, {np.abs(wide_old).max():.3g}",
            got=f"{np.abs(wide_old - wide_new).max():.3g} apart",
        )
