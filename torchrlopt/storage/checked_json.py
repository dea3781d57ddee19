"""JSON objects as the databases keep them: text with a check sum that ties it to its key."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn


def checksum(key: str, text: str) -> str:
    """SHA-256 (hexadecimal) of a key and the text stored under it."""
    return hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()


def is_whole(key: str, text: Any, found: Any) -> bool:
    """Whether a row is what was put: text, with the check sum that was found beside it."""
    return isinstance(text, str) and found == checksum(key, text)


def parsed(text: str) -> dict[str, Any] | None:
    """The object; None for a text that we would not have written."""
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON's")
