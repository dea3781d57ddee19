"""Memory that is kept between calls: torchrlopt/executors/kept_heap.py."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import fx

import torchrlopt
from torchrlopt.executors import kept_heap

MB = 1 << 20
# The module leaves every other malloc alone, which another test sees.
needs_glibc = pytest.mark.skipif(
    kept_heap._libc() is None, reason="malloc is not glibc's, or is set up already"
)


def page_faults(run: Callable[[], Any]) -> int:
    """Of the calmest of three calls, after two others; a call that is learned from takes more."""
    run(), run()
    counts = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        run()
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counts)


def chain(x: torch.Tensor) -> torch.Tensor:
    """Twenty intermediates as large as the input, three of them at a time."""
    for _ in range(10):
        x = torch.cos(x * 2)
    return x.sum()


@needs_glibc
def test_a_graph_on_the_heap_asks_the_kernel_for_nothing() -> None:
    x = torch.randn(16 * MB)  # 64 MB, above what glibc itself keeps
    kept = kept_heap.on_heap(chain, 192 * MB)
    # Twenty results of 64 MB, in pages of 4 KB; what other tests left on the heap may cost one or the other.
    assert page_faults(lambda: kept(x)) < 0.2 * 20 * 16384
    assert torch.equal(kept(x), chain(x))


@needs_glibc
def test_what_is_kept_is_given_back_with_the_last_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(kept_heap, "_held", {})  # graphs of other tests would keep it
    one, other = kept_heap.on_heap(chain, 64 * MB), kept_heap.on_heap(chain, 200 * MB)
    assert sorted(kept_heap._held.values()) == [64 * MB, 200 * MB]
    x = torch.randn(16 * MB)
    other(x)

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    full = resident()
    del one, other
    assert kept_heap._held == {}
    assert resident() < full - 50 * MB


@needs_glibc
def test_an_error_leaves_malloc_as_it_was() -> None:
    set_to = []

    def fail() -> None:
        assert set_to[-1] == (kept_heap._MMAP_MAX, 0)
        raise ValueError("no")

    kept = kept_heap.on_heap(fail, 64 * MB)
    real = kept._mallopt

    def recorded(name: int, value: int) -> None:
        assert real(name, value) == 1, "malloc takes it"
        set_to.append((name, value))

    kept._mallopt = recorded
    with pytest.raises(ValueError, match="no"):
        kept()
    assert set_to[-1] == (kept_heap._MMAP_MAX, kept_heap._NUM_MAPS)


@needs_glibc
def test_a_call_in_another_thread_changes_no_setting() -> None:
    set_to = []
    kept = kept_heap.on_heap(lambda: "result", 64 * MB)
    kept._mallopt = lambda *setting: set_to.append(setting)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(kept).result() == "result"
    assert set_to == []
    assert kept() == "result"
    assert set_to == [(kept_heap._MMAP_MAX, 0), (kept_heap._MMAP_MAX, kept_heap._NUM_MAPS)]


@needs_glibc
def test_graphs_may_come_and_go_in_many_threads() -> None:
    gc.collect()
    before = dict(kept_heap._held)

    def make_some(_: int) -> None:
        for _ in range(200):
            kept_heap.on_heap(chain, 64 * MB)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make_some, range(4)))
    assert kept_heap._held == before


def test_small_graphs_and_a_malloc_of_the_users_own_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_heap.on_heap(chain, kept_heap.WORTH_KEEPING - 1) is chain
    for name, value in (
        ("MALLOC_MMAP_THRESHOLD_", "1000000"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=0"),
    ):
        kept_heap._libc.cache_clear()
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert kept_heap.on_heap(chain, 10**9) is chain
    kept_heap._libc.cache_clear()


def test_the_peak_counts_what_lives_at_the_same_time() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes = [x]
    for size, sources in ((100, [0]), (50, [1]), (10, [2]), (7, [3, 2])):
        node = graph.call_function(torch.add, tuple(nodes[source] for source in sources))
        node.meta["val"] = torch.empty(size, dtype=torch.float64)
        nodes.append(node)
    x.meta["val"] = torch.empty(10**6)
    graph.output(nodes[-1])
    assert kept_heap.peak_bytes(graph) == 150 * 8, "the first two; then 50 + 10 + 7 and less"


@needs_glibc
@pytest.mark.parametrize("executor", ["eager", "inductor"])
def test_a_large_batch_runs_without_page_faults(executor: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1),
        torch.nn.ReLU(), torch.nn.AvgPool2d(96),
    ).eval()  # fmt: skip
    x = torch.randn(32, 3, 96, 96)  # two intermediates of 36 MB
    with torch.no_grad():
        before = set(kept_heap._held)
        fast = torchrlopt.optimise(model, (x,), executor=executor, searcher="greedy", measure=False)
        assert fast.report.kept == "rewritten"
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        assert page_faults(lambda: fast(x)) < 9000, "less than one of the two results"
        assert set(kept_heap._held) - before
