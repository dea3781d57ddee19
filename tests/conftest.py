"""Shared fixtures: one torch thread, a separate plan store, a fresh Dynamo."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("ci", max_examples=200, derandomize=True, deadline=None)
hypothesis.settings.register_profile("quick", max_examples=20, derandomize=True, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=5000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests run in parallel processes; more threads would only disturb each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """Restore environment and signals, which the command line changes in its process, here the tests'."""
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    for number, handler in handlers.items():
        signal.signal(number, handler)


STORES = itertools.count()


@pytest.fixture(autouse=True)
def own_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tests from reading or writing the user's plan store.

    The folder is made by whoever stores something: `tmp_path` would make one for each of thousands of tests,
    which takes longer than most of them.
    """
    place = tmp_path_factory.getbasetemp() / f"store{next(STORES)}"
    monkeypatch.setenv("TORCHRLOPT_CACHE_DIR", str(place))
    return place


@pytest.fixture(autouse=True)
def _no_hidden_bug(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail tests in which the fallback hides one of our bugs, as it does for users.

    A test that provokes one carries the marker `hides_errors`.
    """
    from torchrlopt.compile import fallback
    from torchrlopt.compile.fallback import HIDDEN

    monkeypatch.setattr(fallback, "log_traceback", HIDDEN.note)  # the log is for users
    HIDDEN.clear()
    yield
    if request.node.get_closest_marker("hides_errors") is None:
        assert HIDDEN.texts == [], "the fallback has hidden internal errors"


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Use two threads: the agent's search switches to one, which the default of one would hide."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """No compiled code from or for other tests."""
    from torchrlopt.compile import backend

    torch._dynamo.reset()
    backend.reset()  # torch resets a backend only once per torch.compile call
    yield
    torch._dynamo.reset()
    backend.reset()


@pytest.fixture
def young_heap() -> None:
    """Leave what lives now out of later garbage collections, for tests that ask for several of them."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Leave what is loaded by now out of garbage collection, which takes a second with it."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need missing hardware or libraries, with the reason."""
    has_gpu = torch.cuda.is_available()
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if item.get_closest_marker("tensorrt") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="TensorRT needs a CUDA device"))


@pytest.fixture
def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `optimise_onnx` check files in this process: one of its own takes seconds to begin."""
    from torchrlopt.compile import check_file, fold_file

    for part in (check_file, fold_file):
        monkeypatch.setattr(
            part, "run_limited", lambda module, arguments, data, *_, part=part: part.main(data, arguments)
        )


@pytest.fixture
def without_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a processor that `csrc/kernels` does not support: oneDNN computes instead of our kernels."""
    from torchrlopt.executors.eager.kernels import indirect

    monkeypatch.setattr(indirect, "kernels", lambda *dtype: None)
