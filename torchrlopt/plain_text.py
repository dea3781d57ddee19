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


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
