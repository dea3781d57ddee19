"""Warnings ignored in one thread: torchrlopt/warning_filter.py."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchrlopt
from tests.onnx.onnx_text import proto_of
from torchrlopt.onnx import files
from torchrlopt.warning_filter import ignored_warnings


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """The program asks for errors."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        yield


def test_filters_are_what_they_were_after_threads_have_loaded(tmp_path: Path) -> None:
    chain = "".join(f"v{i + 1} = Relu(v{i})\n" for i in range(50))
    proto = proto_of(f"g (float[2] v0) => (float[2] v50) {{ {chain} }}")
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    before = list(warnings.filters)
    loaded: list[int] = []

    def work() -> None:
        for _ in range(20):
            files.load(path)
            loaded.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 160, "no warning became an error in a thread"
    assert list(warnings.filters) == before
    with pytest.raises(UserWarning):
        warnings.warn("the program's own", stacklevel=1)


def test_only_the_thread_that_asked_is_spared() -> None:
    inside, seen = threading.Event(), threading.Event()

    def work() -> None:
        with ignored_warnings():
            warnings.warn("ignored", stacklevel=1)
            inside.set()
            assert seen.wait(60)
            warnings.warn("still ignored", stacklevel=1)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(UserWarning, match="theirs"):
        warnings.warn("theirs", stacklevel=1)
    with ignored_warnings("something else"), pytest.raises(UserWarning, match="theirs"):
        warnings.warn("theirs", stacklevel=1)
    seen.set()
    thread.join()


def test_filters_that_others_save_and_put_back_bring_nothing_back() -> None:
    """Another thread leaves `catch_warnings` after we are gone: what it puts back ignores nothing."""
    with ignored_warnings():
        others = warnings.catch_warnings()
        others.__enter__()
    others.__exit__(None, None, None)
    with pytest.raises(UserWarning):
        warnings.warn("the program's own", stacklevel=1)
    with ignored_warnings():
        warnings.warn("ignored", stacklevel=1)


def test_the_package_changes_filters_nowhere_else() -> None:
    """What `warnings` offers for it is for programs of one thread."""
    folder = Path(torchrlopt.__file__).parent
    changing = ("catch_warnings(", "simplefilter(", "filterwarnings(", "resetwarnings(")
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not any(f"warnings.{name}" in text for name in changing), path
