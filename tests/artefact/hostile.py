"""Files that `save` did not write: mutations of files that it did.

`python -m tests.artefact.hostile SEED CASES FOLDER` makes and loads them in a process that a crash may end.
"""

from __future__ import annotations

import collections
import copy
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

import torchrlopt
from tests.artefact.models import NAMES, made, saved
from torchrlopt.errors import ModelFormatError, RlOptError
from torchrlopt.storage.checked_json import checksum

Place = tuple[Any, Any, tuple[Any, ...]]
"""A container, the key of one of its items, and the path to it."""

NAME = "ran"
"""Of the file that code in a mutated file would make."""


def values(folder: Path) -> list[Any]:
    """What takes the place of another value."""
    code = f"__import__('pathlib').Path({str(folder / NAME)!r}).touch()"
    numbers: list[Any] = [
        0,
        1,
        -1,
        2,
        7,
        512,
        4096,
        65536,
        2**31,
        2**31 - 1,
        2**62,
        2**63 - 1,
        2**63,
        -(2**63),
        2**70,
        0.5,
        1e308,
    ]
    texts = [
        "", code, "float64", "none", "gelu", "aten.from_file.default", "aten.set_.source_Tensor",
        "aten._unsafe_index.Tensor", "aten.add.__class__", "aten.as_strided.default", "aten.index.Tensor",
        "builtins.eval", "torch.load", "operator.call", "operator.getitem", "kernel.pack", "kernel.convolve",
        "kernel.linear", "kernel.attention", "method.__reduce__", "method.view",
    ]  # fmt: skip
    others: list[Any] = [
        None, True, False, [], {}, [0], [1, 1], {"v": 0}, {"v": 1}, {"v": -1}, {"v": 2**40}, {"tuple": []},
        {"float": "nan"}, {"dtype": "bool"}, {"dtype": "float64"}, {"slice": [0, 1, 2]}, {"device": "cuda"},
        {"tensor": 0}, {"tensor": 1}, {"given": 0}, {"constant": code},
    ]  # fmt: skip
    return [*numbers, *texts, *others]


def read(path: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """The JSON of a file and its bytes."""
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["torchrlopt"]), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # it is no dict


def written(content: Any, parts: dict[str, torch.Tensor]) -> bytes:
    """A file with a check sum that fits."""
    text = json.dumps(content)
    header = {"torchrlopt": text, "sha256": checksum("torchrlopt model", text), "filler": ""}
    data = save(parts, header)
    header["filler"] = " " * (-(8 + int.from_bytes(data[:8], "little")) % 64)
    return save(parts, header)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[Place]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield node, key, (*path, key)
        yield from places(value, (*path, key))


def mutated(content: Any, rng: random.Random, pool: list[Any]) -> Any:
    content = copy.deepcopy(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = [each for each in places(content) if "report" not in each[2]]
        part = rng.choice(["packed", "packed", "lowered", "arguments", "results", "tensors", None])
        found = [each for each in found if part in each[2]] or found
        holder, key, _ = rng.choice(found)
        value, kind = holder[key], rng.random()
        if kind < 0.15:
            del holder[key]
        elif kind < 0.45 and type(value) is int:
            holder[key] = rng.choice(
                [value + rng.choice([-1, 1, 2, 64, -1000]), value * rng.choice([2, -1, 2**15, 2**40])]
            )
        elif kind < 0.6:
            other, name, _ = rng.choice(found)
            holder[key] = copy.deepcopy(other.get(name) if isinstance(other, dict) else other[-1:])
        else:
            holder[key] = copy.deepcopy(rng.choice(pool))
    return content


def damaged(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(min(len(changed), 60_000))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed))]) if rng.random() < 0.3 else bytes(changed)


def has_stamp(content: Any) -> bool:
    inner = content.get("content")
    return isinstance(inner, dict) and isinstance(inner.get("stamp"), dict)


def main(seed: int, cases: int, folder: Path) -> None:
    """Load mutations; each raises ModelFormatError or makes a module, whose call may raise."""
    rng, counts = random.Random(seed), collections.Counter[str]()
    pool, path = values(folder), folder / "mutated.rlopt"
    models = []
    for name in NAMES:
        model, inputs = made(name)
        saved(model, inputs, folder / f"{name}.rlopt")
        models.append((*read(folder / f"{name}.rlopt"), inputs))
    for case in range(cases):
        content, parts, inputs = rng.choice(models)
        if rng.random() < 0.15:
            data = damaged(written(content, parts), rng)
        else:
            content = mutated(content, rng, pool)
            if rng.random() < 0.2 and has_stamp(content):
                content["content"]["stamp"]["instructions"] = "other"
            data = written(content, parts)
        path.write_bytes(data)
        try:
            loaded = torchrlopt.load(path)
        except ModelFormatError:
            counts["refused"] += 1
        else:
            try:
                with torch.no_grad():
                    loaded(*inputs)
                counts["ran"] += 1
            except (RlOptError, RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
                counts["raised"] += 1
        if (folder / NAME).exists():
            raise AssertionError(f"case {case} of seed {seed} has run code")
    print(json.dumps(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
