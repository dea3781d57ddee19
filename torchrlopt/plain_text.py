"""Text from files as it may be shown: nothing in it steers a terminal or passes for another line."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with escapes for what is no visible character, line ends and tabs aside.

    Control characters clear screens, set titles and write to clipboards; marks of direction show text in
    another order; lone surrogates cannot be written at all.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in text)


def escaped(error: Exception) -> Exception:
    """The error as the cause of one of ours: a traceback shows its text as it is, which may be a file's."""
    text = str(error)
    shown = printable(text)
    if shown == text:
        return error
    return Exception(f"{type(error).__name__}: {shown}").with_traceback(error.__traceback__)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
