"""Bundles: round trips, damage, what strangers may have written; and what the stores take of them."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchrlopt.errors import CacheError
from torchrlopt.machine.cost import Price, ProfileStore
from torchrlopt.plan.store import PlanStore
from torchrlopt.storage import bundle
from torchrlopt.storage.bundle import VARIABLE, read_bundle, write_bundle
from torchrlopt.storage.checked_json import checksum

DEVICE = "ab" * 32
PRICE = Price(1, 2, "Relu", 1.5, 1.0, 3)
PLAN = {"plan": {"steps": [["fuse", 1]]}, "timing": {"gain": 0.5, "taken_at": 10.0}, "portable": "for all"}
NESTED = '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A bundle of a plan, a choice, a price and a probe."""
    plans, profiles = PlanStore(tmp_path / "made"), ProfileStore(tmp_path / "made")
    plans.put("a", PLAN)
    plans.put("b", {"executor": "eager", "taken_at": 10.0})
    profiles.add(DEVICE, "eager", [PRICE])
    profiles.put_probe(DEVICE, {"model": {"launch_us": 3.0}})
    assert write_bundle(tmp_path / "file", [*plans.bundled(), *profiles.bundled()]) == 5
    return tmp_path / "file"


def with_line(path: Path, kind: str, key: str, text: str) -> Path:
    """Add a line whose check sum fits: it is no secret."""
    with path.open("a") as file:
        file.write(f"{kind}\t{key}\t{checksum(f'{kind} {key}', text)}\t{text}\n")
    return path


def test_a_bundle_is_consulted_behind_the_cache(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(path))
    plans, profiles = PlanStore(tmp_path / "own"), ProfileStore(tmp_path / "own")
    content = path.read_bytes()
    assert plans.get("a") == PLAN
    assert plans.get("for all") == {"plan": PLAN["plan"], "timing": None, "verified": None}
    assert profiles.prices(DEVICE, "eager") == {2: PRICE}
    assert profiles.prices(DEVICE, "inductor") == {}
    assert profiles.probe(DEVICE) == {"model": {"launch_us": 3.0}}
    assert not (tmp_path / "own").exists(), "nothing is written"
    plans.put("a", {"own": 1})
    profiles.put_probe(DEVICE, {"model": {"launch_us": 4.0}})
    assert plans.get("a") == {"own": 1}, "one's own come first"
    assert profiles.probe(DEVICE) == {"model": {"launch_us": 4.0}}
    assert [entry.key for entry in plans.entries()] == ["a"], "what others measured is not exported"
    assert path.read_bytes() == content


def test_of_two_entries_the_one_measured_last_stays(path: Path, tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "own")
    newer, older = {**PLAN, "timing": {"taken_at": 11.0}}, {"executor": "inductor", "taken_at": 9.0}
    store.put("a", newer)
    store.put("b", older)
    plans = list(read_bundle(path).entries("plan"))
    assert store.merge(plans) == (1, 1, 1)
    assert store.get("a") == newer
    assert store.get("b") == {"executor": "eager", "taken_at": 10.0}
    assert store.merge(plans) == (0, 0, 3)
    in_the_future = [("a", {"executor": "x", "taken_at": time.time() + 1000})]
    assert store.merge(in_the_future) == (0, 0, 1)


def test_of_two_prices_the_one_measured_last_stays(path: Path, tmp_path: Path) -> None:
    store, later = ProfileStore(tmp_path / "own"), ProfileStore(tmp_path / "later")
    assert store.merge(read_bundle(path)) == (1, 1)
    assert store.merge(read_bundle(path)) == (0, 0)
    assert store.prices(DEVICE, "eager") == {2: PRICE}
    later.add(DEVICE, "eager", [Price(1, 2, "Relu", 9.0, 1.0, 3)])
    assert later.merge(read_bundle(path)) == (0, 1)
    assert later.prices(DEVICE, "eager")[2].us == 9.0


def test_a_store_that_cannot_be_written_says_so(path: Path, tmp_path: Path) -> None:
    (tmp_path / "no folder").write_text("")
    where = tmp_path / "no folder" / "inside"
    assert PlanStore(where).merge(read_bundle(path).entries("plan")) is None
    assert ProfileStore(where).merge(read_bundle(path)) is None


def cut(data: bytes) -> bytes:
    return data[:-1]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "a database": lambda data: b"SQLite format 3\x00" + data,
    "no text": lambda data: data + b"\xff\n",
    "no end": cut,
    "a line is missing its end": lambda data: data[: data.rindex(b"\t")] + b"\n",
    "another version": lambda data: data.replace(b"bundle 2", b"bundle 1", 1),
    "another number": lambda data: data.replace(b"0.5", b"0.6", 1),
    "another key": lambda data: data.replace(b"plan\ta", b"plan\tc", 1),
    "another kind": lambda data: data.replace(b"plan\ta", b"prices\ta", 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_a_typed_error(path: Path, kind: str) -> None:
    path.write_bytes(DAMAGE[kind](path.read_bytes()))
    with pytest.raises(CacheError, match="file"):
        read_bundle(path)


def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 101)
    monkeypatch.setattr(bundle, "MAX_BYTES", 100)
    for name in ("missing", "pipe", "large", "", "nul\0"):
        with pytest.raises(CacheError, match="cannot be read"):
            read_bundle(tmp_path / name)
    with pytest.raises(CacheError, match="too large"):
        write_bundle(tmp_path / "mine", [("plan", "a", {"x": "y" * 100})])
    assert not (tmp_path / "mine").exists()


def test_a_bad_bundle_leaves_ones_own_cache(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(cut(path.read_bytes()))
    monkeypatch.setenv(VARIABLE, str(path))
    store = PlanStore(tmp_path / "own")
    store.put("b", {"x": 1})
    assert (store.get("a"), store.get("b"), store.get("c")) == (None, {"x": 1}, None)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    assert "the bundle is damaged" in caplog.text


@pytest.mark.parametrize("text", [NESTED, '{"x": NaN}', "[1]", "null", "{", ""])
def test_a_payload_that_is_no_object_is_refused(
    path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_bundle(with_line(path, "plan", "c", text))
    assert found.get("plan", "c") is None
    with pytest.raises(CacheError, match="no JSON object"):
        list(found.entries("plan"))


VALUES: list[Any] = [None, True, -1, 1e300, 2**80, "x", "\0", [], {}, [1, "2"], {"rows": [[1] * 7]}, "0x1"]


def test_the_stores_take_any_bundle(path: Path, tmp_path: Path) -> None:
    """Damaged bytes, and any values below a valid check sum: a refusal or a merge, no other error."""
    generator, content = random.Random(0), path.read_bytes()
    num_read = 0
    for _ in range(600):
        data = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            place = generator.randrange(len(data))
            data[place : place + generator.randint(0, 2)] = generator.randbytes(generator.randint(0, 2))
        path.write_bytes(data)
        try:
            read_bundle(path)
            num_read += 1  # a change of nothing to nothing
        except CacheError:
            pass
    assert num_read < 150
    path.write_bytes(content)
    names = [*"xyz", "rows", "plan", "portable", "timing", "taken_at", "at", "probe", "model", "measured_at"]
    for number in range(300):
        payload = {name: generator.choice(VALUES) for name in generator.sample(names, 4)}
        row = [generator.choice([*VALUES, 1, 0.5, "1f"]) for _ in range(7)]
        payload["rows"] = generator.choice([[row], [[generator.choice(VALUES)] * 7], payload.get("rows")])
        kind = generator.choice(["plan", "prices", "probe", "else"])
        with_line(path, kind, f"{number} eager", json.dumps(payload))
    found = read_bundle(path)
    plans, profiles = PlanStore(tmp_path / "own"), ProfileStore(tmp_path / "own")
    assert plans.merge(found.entries("plan")) is not None
    assert profiles.merge(found) is not None
    assert plans.get("a") == PLAN
    assert profiles.prices(DEVICE, "eager") == {2: PRICE}
    again = tmp_path / "again"
    assert write_bundle(again, [*plans.bundled(), *profiles.bundled()]) > 5
    read_bundle(again)
