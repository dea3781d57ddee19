"""One-line error messages, for tables and pipes."""

from __future__ import annotations

import traceback


def one_line(error: BaseException, limit: int) -> str:
    """Type and message in at most `limit` characters, without torch's hints about environment variables."""
    text = "".join(traceback.format_exception_only(error)).split("Set TORCHDYNAMO_VERBOSE")[0]
    return " ".join(text.split())[:limit]
