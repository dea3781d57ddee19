"""Sanitises untrusted text for display, so that it cannot control a terminal or fake other lines."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with invisible characters escaped, except line ends and tabs.

    Control characters can clear the screen, set titles and write to the clipboard; bidirectional marks
    reorder text; lone surrogates cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in text)


def escaped(error: Exception) -> Exception:
    """Return the error with its message escaped, for use as a cause: tracebacks print it verbatim."""
    text = str(error)
    shown = printable(text)
    if shown == text:
        return error
    return Exception(f"{type(error).__name__}: {shown}").with_traceback(error.__traceback__)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
