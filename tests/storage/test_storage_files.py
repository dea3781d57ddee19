"""Reading and writing whole files: torchrlopt/storage/files.py, and external JSON: checked_json.py."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from torchrlopt.errors import OptionsError, SearchError
from torchrlopt.storage import checked_json, files
from torchrlopt.storage.checked_json import decoded, parsed
from torchrlopt.storage.files import read_bounded, write_whole
from torchrlopt.storage.plan_file import SavedPlan

PLAN = SavedPlan(({"graph_hash": "x", "steps": []},), {})


@pytest.fixture
def umask() -> object:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def special_files(folder: Path) -> list[Path]:
    """A directory, a pipe and a link to it; as root a device, too."""
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "pipe")
    found = [folder / "folder", folder / "pipe", folder / "link"]
    if os.getuid() == 0:
        os.mknod(folder / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        found.append(folder / "null")
    return found


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    """Without waiting for a writer of the pipe: this test would not end."""
    for path in [*special_files(tmp_path), Path("/dev/zero")]:
        with pytest.raises(OSError, match="no plain file"):
            read_bounded(path, 10)
        with pytest.raises(SearchError, match="cannot be read"):
            SavedPlan.load(path)


def test_a_pipe_that_is_refused_is_left_to_its_writer(tmp_path: Path) -> None:
    """To open it would let the writer go on, and lose what it writes."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("x"), daemon=True)
    writer.start()
    with pytest.raises(OSError, match="no plain file"):
        read_bounded(tmp_path / "pipe", 10)
    assert writer.is_alive()
    assert (tmp_path / "pipe").read_text() == "x"
    writer.join()


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_bounded(path, 10) == b"x" * 10
    with pytest.raises(OSError, match="10 bytes, expected up to 9"):
        read_bounded(path, 9)
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # no disk holds it, and no memory
    with pytest.raises(OSError, match="expected up to"):
        read_bounded(path, 1 << 20)


def test_files_that_do_not_know_their_size_are_bounded_too() -> None:
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    assert read_bounded(path, 1 << 20).startswith(b"Name:")
    with pytest.raises(OSError, match="more than 20 bytes"):
        read_bounded(path, 20)


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    special = special_files(tmp_path)
    for path in special:
        before = path.lstat()
        with pytest.raises(OptionsError, match="no file"):
            PLAN.save(path)
        assert path.lstat().st_mode == before.st_mode
        assert path.lstat().st_ino == before.st_ino
    assert sorted(tmp_path.iterdir()) == sorted(special), "nothing is left over"


def test_the_mode_is_by_the_umask(tmp_path: Path, umask: object) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    assert mode(path) == 0o640
    path.chmod(0o604)
    PLAN.save(path)
    assert mode(path) == 0o604, "of the file that was there"
    write_whole(tmp_path / "private", b"", 0o600)
    assert mode(tmp_path / "private") == 0o600
    (tmp_path / "private").chmod(0o666)
    write_whole(tmp_path / "private", b"", 0o600)
    assert mode(tmp_path / "private") == 0o600


def test_a_file_is_on_the_disk_before_its_name_points_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda handle: (done.append("fsync"), fsync(handle)))
    monkeypatch.setattr(files.os, "replace", lambda *names: (done.append("replace"), replace(*names)))
    write_whole(tmp_path / "file", b"x")
    assert done == ["fsync", "replace"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError("no space left on device")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("text", ["[" * 100_000, '{"x":' * 100_000, "{", "NaN", b"\xff", b"[\xff]", ""])
def test_malformed_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of many wordings
        decoded(text)
    assert parsed(text) is None


def test_json_of_very_many_values_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_json, "MAX_VALUES", 1000)
    monkeypatch.setattr(checked_json.json, "loads", lambda *_, **__: pytest.fail("it is made"))
    for text in ("[" + "[]," * 1000 + "0]", "[" + "{}," * 1000 + "0]", "[" + "0," * 1001 + "0]"):
        with pytest.raises(ValueError, match="more than 1000 values"):
            decoded(text)
