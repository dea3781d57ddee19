"""The profile on disk: torchrlopt/machine/cost/store.py, torchrlopt/storage/sqlite.py."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from tests.forks import run
from torchrlopt.machine.cost import Price, ProfileStore
from torchrlopt.machine.cost.store import digest_of
from torchrlopt.storage.checked_json import checksum

DEVICE, EXECUTOR = "ab" * 32, "eager"
LARGE = 2**64 - 1


def made(context: int, us: float = 2.0, graphs: int = 1) -> Price:
    return Price(7, context, "Relu", us, 1.5, graphs)


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "cache")


def test_prices_come_back_by_device_and_executor(store: ProfileStore) -> None:
    store.add(DEVICE, EXECUTOR, [made(1), made(LARGE)])
    assert ProfileStore(store.path.parent).prices(DEVICE, EXECUTOR) == {1: made(1), LARGE: made(LARGE)}
    assert store.prices("other", EXECUTOR) == {}
    assert store.prices(DEVICE, "inductor") == {}


def test_prices_seen_again_are_weighted_by_graphs(store: ProfileStore) -> None:
    store.add(DEVICE, EXECUTOR, [made(1, us=2.0, graphs=3)])
    store.add(DEVICE, EXECUTOR, [made(1, us=6.0, graphs=1)])
    (price,) = store.prices(DEVICE, EXECUTOR).values()
    assert (price.us, price.num_graphs) == (3.0, 4)


@pytest.mark.parametrize("us", [-1.0, float("nan"), float("inf"), 1e12])
def test_implausible_times_are_not_stored(store: ProfileStore, us: float) -> None:
    store.add(DEVICE, EXECUTOR, [made(1, us=us), made(2)])
    assert set(store.prices(DEVICE, EXECUTOR)) == {2}


@pytest.mark.parametrize("column", ["us", "own", "num_graphs", "analytic_us"])
@pytest.mark.parametrize("value", ["'zzz'", "-1", "9e999", "cast(x'ff41' as text)", "x'00'"])
def test_poisoned_rows_are_left_out_and_measured_again(
    store: ProfileStore, column: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.add(DEVICE, EXECUTOR, [made(1), made(2)])
    with sqlite3.connect(store.path) as db:
        db.execute(f"update prices_2 set {column} = {value} where context = ?", (f"{1:016x}",))
    assert set(store.prices(DEVICE, EXECUTOR)) == {2}
    store.add(DEVICE, EXECUTOR, [made(1)])
    assert store.prices(DEVICE, EXECUTOR) == {1: made(1), 2: made(2)}
    assert not caplog.records


def test_a_poisoned_count_does_not_overflow(store: ProfileStore) -> None:
    store.add(DEVICE, EXECUTOR, [made(1)])
    with sqlite3.connect(store.path) as db:
        db.execute("update prices_2 set num_graphs = ?", (2**63 - 1,))
    store.add(DEVICE, EXECUTOR, [made(1)])
    assert store.prices(DEVICE, EXECUTOR) == {1: made(1)}


def test_prices_measured_longest_ago_go_first(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "cache", max_prices=3)
    for context in range(1, 6):
        store.add(DEVICE, EXECUTOR, [made(context)])
    assert set(store.prices(DEVICE, EXECUTOR)) == {3, 4, 5}
    (profile,) = store.profiles()
    assert (profile.device, profile.executor, profile.num_prices) == (DEVICE, EXECUTOR, 3)
    assert 0 < profile.oldest <= profile.newest <= time.time()


def test_probe_and_prices_share_a_file(store: ProfileStore, caplog: pytest.LogCaptureFixture) -> None:
    store.put_probe(DEVICE, {"model": {"launch_us": 3.0}})
    assert store.prices(DEVICE, EXECUTOR) == {}
    store.add(DEVICE, EXECUTOR, [made(1)])
    assert store.probe(DEVICE) == {"model": {"launch_us": 3.0}}
    assert store.probe("other") is None
    assert not caplog.records


def test_a_tampered_probe_is_none(store: ProfileStore) -> None:
    store.put_probe(DEVICE, {"model": {}})
    with sqlite3.connect(store.path) as db:
        db.execute('update probes_1 set payload = \'{"model": {"launch_us": 0}}\'')
    assert store.probe(DEVICE) is None


@pytest.mark.parametrize(
    "payload",
    [
        '{"model": {"launch_us": NaN}}',
        '{"model": {"launch_us": 1e999}}',
        '{"model": {"launch_us": -1}}',
        '{"model": {"launch_us": "fast"}}',
        '{"model": [1]}',
        '{"raw": {}}',
        "[]",
        "{",
        "[" * 100_000,
    ],
    ids=range(9),
)
def test_a_probe_with_numbers_that_are_none_is_none(store: ProfileStore, payload: str) -> None:
    store.put_probe(DEVICE, {"model": {}})
    with sqlite3.connect(store.path) as db:
        db.execute("update probes_1 set payload = ?, digest = ?", (payload, checksum(DEVICE, payload)))
    assert store.probe(DEVICE) is None


def test_clearing_forgets_everything(store: ProfileStore) -> None:
    store.add(DEVICE, EXECUTOR, [made(1)])
    store.put_probe(DEVICE, {"model": {}})
    assert store.num_probes == 1
    assert store.clear()
    assert (store.profiles(), store.num_probes, store.probe(DEVICE)) == ([], 0, None)


def test_two_processes_lose_nothing(store: ProfileStore) -> None:
    def fill(base: int) -> None:
        for i in range(20):
            store.add(DEVICE, EXECUTOR, [made(base + i), made(5)])

    run(lambda: fill(100), lambda: fill(200))
    found = store.prices(DEVICE, EXECUTOR)
    assert len(found) == 41
    assert found[5].num_graphs == 40, "both counted"


def test_replaced_prices_are_not_averaged(store: ProfileStore) -> None:
    store.add(DEVICE, EXECUTOR, [made(1, us=2.0), made(2)])
    store.add(DEVICE, EXECUTOR, [made(1, us=8.0)], replace=True)
    assert store.prices(DEVICE, EXECUTOR) == {1: made(1, us=8.0), 2: made(2)}


def test_digest_depends_on_prices_and_not_on_their_order() -> None:
    assert digest_of([made(1), made(2)]) == digest_of([made(2), made(1)])
    assert digest_of([made(1)]) != digest_of([made(1, us=2.1)])
