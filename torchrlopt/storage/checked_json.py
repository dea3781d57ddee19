"""Untrusted JSON, and objects with a checksum that binds them to their key."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn

MAX_VALUES = 4_000_000
"""Maximum number of values in a text; no plan or agent has a tenth of it."""


def checksum(key: str, text: str) -> str:
    """Return the SHA-256 (hexadecimal) of a key and the text stored under it."""
    return hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()


def is_whole(key: str, text: Any, found: Any) -> bool:
    """Whether a row is intact: `text` is a string and `found` is its checksum."""
    return isinstance(text, str) and found == checksum(key, text)


def decoded(text: str | bytes) -> Any:
    """Decode a JSON text in bounded memory.

    Raises:
        ValueError: it is malformed, nested too deeply, or has too many values.
    """
    if isinstance(text, bytes):
        text = text.decode()
    # An empty list takes three bytes as text but 64 as an object: 64 MB would become 1.4 GB.
    if sum(map(text.count, "[{,")) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def parsed(text: str | bytes) -> dict[str, Any] | None:
    """Return the decoded object, or None if the text is not one."""
    try:
        found = decoded(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON's")
