"""The one tree of typed errors of torchrlopt.

Everything this package raises on purpose derives from `RlOptError`. With `on_error="fallback"` any error
leads to the original graph; with "raise" the one that was raised, of this tree or not, reaches the caller.
"""

from __future__ import annotations

from torchrlopt.plain_text import printable


class RlOptError(Exception):
    """Base of every error torchrlopt raises on purpose.

    The message is assembled in one order everywhere: what happened, where, what was expected, what
    was found, what to do. Empty parts are left out.

    Args:
        what: one sentence that says what went wrong.
        where: file, line, node, substitution or stage it happened in.
        expected: what would have been right.
        got: what was found instead.
        todo: what the reader can do about it.
        is_bug: whether it is a bug of ours where PyTorch runs the model; None: as `IS_BUG` says of its class.
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
        # What was got and where may be text of a file, and the message goes to terminals and logs.
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

    IS_BUG = True  # one that we made of a model that PyTorch runs


class UnsafePathError(ModelFormatError):
    """External data of an ONNX file points outside the directory of the file, or at no plain file."""


class UnsupportedError(RlOptError):
    """The thing asked for is valid but is not supported here."""


class SubstitutionError(RlOptError):
    """A substitution is malformed, or was applied where it does not match.

    Args:
        reason: why it is refused.
        name: name of the substitution.
        line: line number in the library text, 0 when there is none.
        file: file of the library, where there is one.
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
    """The rewritten graph does not compute what the original computes."""

    IS_BUG = True


class LoweringError(RlOptError):
    """The rewritten graph could not be made into a callable."""

    IS_BUG = True


class WeightsError(RlOptError):
    """What was composed of the weights cannot stand for them: it overflows where the original does not.

    Or there is nothing to compose: a weight has no memory.
    """


class SearchError(RlOptError):
    """A searcher failed, or a stored plan could not be replayed."""


class EnvError(RlOptError):
    """An environment was asked for what it does not have: an episode, a graph, a start, an array."""


class AgentError(RlOptError):
    """A checkpoint is missing, damaged or made for another layout of the observation."""
