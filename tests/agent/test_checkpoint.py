"""Agents on disk: torchrlopt/agent/checkpoint.py."""

from __future__ import annotations

import json
import logging
import os
import random
from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import LIBRARY, new_network
from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.agent.observation import Schema
from torchrlopt.errors import AgentError
from torchrlopt.options import SearchOptions

NUM_DAMAGED = 3000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "agent.safetensors"
    checkpoint.save(path, new_network(seed=5), LIBRARY, {"hours": 0.5, "seeds": [5]})
    return path


def rewrite(path: Path, change: object) -> None:
    """Change the header of a checkpoint and make the manifest fit."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)  # type: ignore[operator]
    text = json.dumps(header).encode()
    resign(path, len(text).to_bytes(8, "little") + text + content[8 + length :])


def resign(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    manifest = {"sha256": checkpoint.hashlib.sha256(content).hexdigest()}
    checkpoint.manifest_path(path).write_text(json.dumps(manifest))


def test_what_is_saved_is_what_is_loaded(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = new_network(seed=5)
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        agent = checkpoint.load(path, LIBRARY)
    assert not caplog.records
    assert (agent.network.names, agent.network.config) == (given.names, given.config)
    for name, tensor in given.state_dict().items():
        assert torch.equal(agent.network.state_dict()[name], tensor), name
    assert agent.metadata["hours"] == "0.5"
    assert agent.metadata["schema_hash"] == Schema.current().hash
    assert agent.metadata["library_hash"] == LIBRARY.hash


@pytest.mark.parametrize("kind", ["latent", "candidates", ""])
def test_another_kind_is_refused_by_name(path: Path, kind: str) -> None:
    rewrite(path, lambda header: header["__metadata__"].__setitem__("kind", kind))
    with pytest.raises(AgentError, match=f"another kind.*expected: agent.*got: {kind}.*retrain"):
        checkpoint.load(path, LIBRARY)


def test_thousands_of_damaged_files_are_refused(path: Path) -> None:
    """Bits that flip, anywhere and in the header, files that end early, and parts that are swapped."""
    content, draw = path.read_bytes(), random.Random(0)
    header = 8 + int.from_bytes(content[:8], "little")

    def flip(end: int) -> bytes:
        at = draw.randrange(end)
        return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]

    def cut() -> bytes:
        return content[: draw.randrange(len(content))]

    def swap() -> bytes:
        first, second = sorted(draw.sample(range(len(content)), 2))
        return content[second:] + content[first:second] + content[:first]

    damages = [lambda: flip(len(content)), lambda: flip(header), cut, swap]
    for number in range(NUM_DAMAGED):
        damaged = damages[number % len(damages)]()
        path.write_bytes(damaged)
        with pytest.raises(AgentError, match="damaged"):
            checkpoint.load(path, LIBRARY)
    path.write_bytes(content)
    checkpoint.load(path, LIBRARY)


def test_damaged_headers_with_a_digest_that_fits_end_nothing(path: Path) -> None:
    """Somebody who can write the manifest too gets a clear error, or another agent, never a crash."""
    content, draw, refused = path.read_bytes(), random.Random(1), 0
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(NUM_DAMAGED // 10):
        damaged = bytearray(content)
        damaged[draw.randrange(header)] ^= 1 << draw.randrange(8)
        resign(path, bytes(damaged))
        try:
            checkpoint.load(path, LIBRARY)
        except AgentError:
            refused += 1
    assert refused > NUM_DAMAGED // 20


def test_a_missing_file_is_refused(path: Path) -> None:
    path.unlink()
    with pytest.raises(AgentError, match="cannot be read"):
        checkpoint.load(path, LIBRARY)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": 3}'])
def test_a_broken_manifest_is_refused(path: Path, text: str) -> None:
    checkpoint.manifest_path(path).write_text(text)
    with pytest.raises(AgentError, match=r"cannot be read|damaged"):
        checkpoint.load(path, LIBRARY)


def test_a_column_that_is_gone_is_refused_by_name(path: Path) -> None:
    def change(header: dict) -> None:
        schema = json.loads(header["__metadata__"]["schema"])
        schema["columns"]["node"][4] = "novelty"
        header["__metadata__"]["schema"] = json.dumps(schema)

    rewrite(path, change)
    with pytest.raises(AgentError, match="the node features; expected: novelty"):
        checkpoint.load(path, LIBRARY)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", "999", "another format"),
        ("schema", "{", "schema of a checkpoint is malformed"),
        ("schema", '{"columns": {}, "ops": []}', "schema of a checkpoint is malformed"),
        ("architecture", "{}}", "no agent"),
        ("architecture", '{"novelty": 1}', "no agent"),
        ("architecture", '{"width": 16}', "no agent"),
    ],
)
def test_other_metadata_is_refused(path: Path, name: str, value: str, message: str) -> None:
    rewrite(path, lambda header: header["__metadata__"].__setitem__(name, value))
    with pytest.raises(AgentError, match=message):
        checkpoint.load(path, LIBRARY)


@pytest.mark.parametrize(
    "sizes",
    [
        {"width": 10**9},
        {"width": 10**30},
        {"width": 4000},
        {"rule_width": 10**5},
        {"rule_width": None},
        {"width": []},
    ],
    ids=str,
)
def test_networks_are_made_no_larger_than_their_weights(path: Path, sizes: dict[str, object]) -> None:
    """The first would take memory until there is none."""

    def change(header: dict) -> None:
        known = json.loads(header["__metadata__"]["architecture"])
        header["__metadata__"]["architecture"] = json.dumps({**known, **sizes})

    rewrite(path, change)
    with pytest.raises(AgentError, match="no agent"):
        checkpoint.load(path, LIBRARY)


@pytest.mark.parametrize("names", ["3", "null", "{", "[" * 100_000, json.dumps(["x"] * 10**6), "[[], {}]"])
def test_other_names_are_refused(path: Path, names: str) -> None:
    def change(header: dict) -> None:
        header["__metadata__"]["substitutions"] = names

    rewrite(path, change)
    with pytest.raises(AgentError, match=r"no agent|safetensors"):
        checkpoint.load(path, LIBRARY)


DEEP = "[" * 100_000


@pytest.mark.parametrize("name", ["schema", "architecture"])
def test_nested_json_is_refused(path: Path, name: str) -> None:
    rewrite(path, lambda header: header["__metadata__"].__setitem__(name, DEEP))
    with pytest.raises(AgentError, match=r"no agent|schema of a checkpoint is malformed"):
        checkpoint.load(path, LIBRARY)


def test_nested_headers_and_manifests_are_refused(path: Path) -> None:
    content = path.read_bytes()
    resign(path, len(DEEP).to_bytes(8, "little") + DEEP.encode())
    with pytest.raises(AgentError, match="no safetensors"):
        checkpoint.load(path, LIBRARY)
    resign(path, content)
    checkpoint.manifest_path(path).write_text("[" * 60_000)
    with pytest.raises(AgentError, match="nested too deep"):
        checkpoint.load(path, LIBRARY)


def test_large_headers_and_manifests_are_refused(path: Path) -> None:
    content = path.read_bytes()
    rewrite(path, lambda header: header["__metadata__"].__setitem__("notes", "x" * 2**20))
    with pytest.raises(AgentError, match="a header of"):
        checkpoint.load(path, LIBRARY)
    resign(path, content)
    with open(checkpoint.manifest_path(path), "ab") as file:
        file.truncate(1 << 34)  # of spaces it would be well-formed
    with pytest.raises(AgentError, match="expected up to 65536"):
        checkpoint.load(path, LIBRARY)


def test_pipes_are_no_agents(path: Path) -> None:
    """And are not waited for."""
    checkpoint.manifest_path(path).unlink()
    os.mkfifo(checkpoint.manifest_path(path))
    with pytest.raises(AgentError, match="no plain file"):
        checkpoint.load(path, LIBRARY)
    assert catalogue.digest(SearchOptions(searcher="agent", agent=str(path))) == ""


def test_weights_that_are_no_numbers_are_refused(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-4:] = b"\x00\x00\xc0\x7f"
    resign(path, bytes(content))
    with pytest.raises(AgentError, match="not finite"):
        checkpoint.load(path, LIBRARY)


def test_a_file_that_is_no_safetensors_is_refused(path: Path) -> None:
    resign(path, b"x" * 100)
    with pytest.raises(AgentError, match="safetensors"):
        checkpoint.load(path, LIBRARY)


def test_another_library_is_no_reason_for_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    few = _C.Library("\n".join(LIBRARY.text(name) for name in LIBRARY.names[:9]))
    with caplog.at_level(logging.DEBUG, "torchrlopt"):
        agent = checkpoint.load(path, few)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    assert LIBRARY.hash in caplog.text
    assert few.hash in caplog.text
    assert agent.network.names == tuple(LIBRARY.names)


def test_an_operator_that_is_gone_moves_no_other(path: Path) -> None:
    def change(header: dict) -> None:
        schema = json.loads(header["__metadata__"]["schema"])
        schema["ops"][3] = "OpOfThePast"
        header["__metadata__"]["schema"] = json.dumps(schema)

    rewrite(path, change)
    agent = checkpoint.load(path, LIBRARY)
    rows = agent.network.encoder.node_input.rows
    assert rows[3] == len(rows)
    assert rows[4] == 4
