"""The exception hierarchy of torchrlopt.

Everything this package raises on purpose derives from `RlOptError`. With `on_error="fallback"`, any error
makes the call fall back to the original graph; with "raise", the error reaches the caller, whether or not it
is an `RlOptError`.
"""

from __future__ import annotations

from torchrlopt.plain_text import printable


class RlOptError(Exception):
    """Base class of every error torchrlopt raises on purpose.

    Every message has the same order: what happened, where, what was expected, what was found, what to do.
    Empty parts are left out.

    Args:
        what: one sentence describing what went wrong.
        where: file, line, node, substitution or stage where it happened.
        expected: what would have been valid.
        got: what was found instead.
        todo: what the reader can do about it.
        is_bug: whether this is a bug in torchrlopt if PyTorch runs the model; None uses `IS_BUG` of the
            class.
    """

    IS_BUG = False

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        expected: object = None,
        got: object = None,
        todo: str = "",
        is_bug: bool | None = None,
    ) -> None:
        self.is_bug = self.IS_BUG if is_bug is None else is_bug
        self.what = what
        self.where = where
        self.expected = expected
        self.got = got
        self.todo = todo
        parts = [what]
        if where:
            parts.append(f"where: {where}")
        if expected is not None:
            parts.append(f"expected: {expected}")
        if got is not None:
            parts.append(f"got: {got}")
        if todo:
            parts.append(f"what to do: {todo}")
        # `got` and `where` may hold text from a file, and the message goes to terminals and logs.
        super().__init__(printable("; ".join(parts)))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by state: the keyword-only arguments do not survive the default protocol."""
        return (_rebuild, (type(self), dict(self.__dict__), self.args))


def _rebuild(cls: type[RlOptError], state: dict[str, object], args: tuple[object, ...]) -> RlOptError:
    """Re-create a pickled error without running its constructor."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class OptionsError(RlOptError):
    """An option is unknown, ill-typed or out of range."""


class CaptureError(RlOptError):
    """The FX graph could not be turned into an ONNX model."""

    IS_BUG = True


class ModelFormatError(RlOptError):
    """An ONNX model or graph text is malformed, too large or inconsistent."""

    IS_BUG = True  # if torchrlopt made it from a model that PyTorch runs


class UnsafePathError(ModelFormatError):
    """External data of an ONNX file points outside the directory of the file, or not at a regular file."""


class UnsupportedError(RlOptError):
    """The request is valid but not supported."""


class SubstitutionError(RlOptError):
    """A substitution is malformed or was applied at a location that it does not match.

    Args:
        reason: why it was rejected.
        name: name of the substitution.
        line: line number in the library text, or 0 if unknown.
        file: file of the library, if any.
    """

    IS_BUG = True

    def __init__(self, reason: str, *, name: str = "", line: int = 0, file: str = "", todo: str = "") -> None:
        self.reason = reason
        self.name = name
        self.line = line
        self.file = file
        place = [f"substitution {name}" if name else "", f"line {line}" if line else "", file]
        super().__init__(reason, where=", ".join(part for part in place if part), todo=todo)


class VerificationError(RlOptError):
    """The rewritten graph does not compute the same result as the original."""

    IS_BUG = True


class BudgetError(VerificationError):
    """Outputs are farther from the exact ones than the user's error budget allows."""

    IS_BUG = False


class LoweringError(RlOptError):
    """The rewritten graph could not be compiled into a callable."""

    IS_BUG = True


class WeightsError(RlOptError):
    """An expression over weights cannot replace them: it overflows and the original does not.

    Also raised when a weight has no storage to compute from.
    """


class SearchError(RlOptError):
    """A searcher failed, or a stored plan could not be replayed."""


class CacheError(RlOptError):
    """A bundle of cache entries is missing, damaged, too large or of another format."""


class EnvError(RlOptError):
    """An environment lacks a requested episode, graph, start or array."""


class AgentError(RlOptError):
    """A checkpoint is missing, damaged or made for a different observation layout."""
