"""Bundles: what caches hold, as one file that travels to other machines and may come from strangers.

A bundle is text. After the header, each line has a kind, a key, a check sum and JSON, separated by tabs.
Reading one executes nothing and takes memory in proportion to its bounded size.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchrlopt.errors import CacheError
from torchrlopt.storage.checked_json import checksum, is_whole, parsed
from torchrlopt.storage.files import read_bounded, write_whole

logger = logging.getLogger(__name__)

VARIABLE = "TORCHRLOPT_CACHE_BUNDLE"
MAX_BYTES = 128 * 2**20  # a full plan store, and as much for prices
_HEADER = "torchrlopt cache bundle 2"
_MADE_BY = "a file that `torchrlopt cache export` wrote"
_NUM_FIELDS = 4

Entry = tuple[str, str, Mapping[str, Any]]
"""Kind, key and a JSON-able payload."""


class Bundle:
    """The entries of a bundle; their JSON is decoded when it is asked for."""

    def __init__(self, where: str = "", texts: Mapping[tuple[str, str], str] | None = None) -> None:
        self._where = where
        self._texts = dict(texts or {})

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return an entry; None if there is none or it is no object."""
        text = self._texts.get((kind, key))
        return None if text is None else parsed(text)

    def entries(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield key and payload of each entry of a kind.

        Raises:
            CacheError: one is no object.
        """
        for each, key in self._texts:
            if each == kind:
                payload = self.get(kind, key)
                if payload is None:
                    raise _damaged(self._where, f"the {kind} {key[:20]} is no JSON object")
                yield key, payload


def read_bundle(path: str | Path) -> Bundle:
    """Read a bundle; its check sums show damage, but not who wrote it.

    Raises:
        CacheError: it does not exist, is too large, damaged, or of another format.
    """
    where = str(path)
    try:
        text = read_bounded(Path(path), MAX_BYTES).decode()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a null character
        raise CacheError("a bundle cannot be read", where=where, got=str(error)) from error
    header, *lines = text.split("\n")
    if header != _HEADER:
        raise CacheError(
            "the file is no bundle of this version", where=where, expected=_MADE_BY, got=header[:40]
        )
    if lines.pop() if lines else True:  # the last line ends, too
        raise _damaged(where, "its end is missing")
    texts = {}
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t", _NUM_FIELDS - 1)
        if len(fields) != _NUM_FIELDS or not is_whole(f"{fields[0]} {fields[1]}", fields[3], fields[2]):
            raise _damaged(where, f"line {number} does not fit its check sum")
        texts[fields[0], fields[1]] = fields[3]
    return Bundle(where, texts)


def write_bundle(path: str | Path, entries: Iterable[Entry]) -> int:
    """Write a bundle atomically; return how many entries it has.

    Raises:
        CacheError: it would be too large.
        OptionsError: the path exists and is not a file.
        OSError: it cannot be written.
    """
    lines = [_HEADER]
    for kind, key, payload in entries:
        if not key.isprintable():  # a tampered key: nobody asks for it
            continue
        text = json.dumps(dict(payload), allow_nan=False)  # which has neither tabs nor line breaks
        lines.append(f"{kind}\t{key}\t{checksum(f'{kind} {key}', text)}\t{text}")
    data = "\n".join([*lines, ""]).encode()
    if len(data) > MAX_BYTES:
        raise CacheError(
            "the cache is too large for a bundle",
            where=str(path),
            expected=f"at most {MAX_BYTES} bytes",
            got=len(data),
            todo="optimise the models with a TORCHRLOPT_CACHE_DIR of their own, and export that",
        )
    write_whole(Path(path).absolute(), data)
    return len(lines) - 1


def given_bundle() -> Bundle:
    """Return the bundle that `$TORCHRLOPT_CACHE_BUNDLE` names; if it is bad, warn and return an empty one."""
    return _read_once(os.environ.get(VARIABLE) or "")


@functools.cache
def _read_once(path: str) -> Bundle:
    try:
        return read_bundle(path) if path else Bundle()
    except CacheError as error:
        logger.warning("%s is not used: %s", VARIABLE, error)
        return Bundle()


def _damaged(where: str, how: str) -> CacheError:
    return CacheError("the bundle is damaged", where=where, expected=_MADE_BY, got=how)
