"""The gate that one thread at a time enters to compile."""

from __future__ import annotations

import threading

from tests import forks
from tests.e2e.threads import in_threads
from torchrlopt.api.gate import Gate


def test_one_thread_at_a_time_is_inside() -> None:
    gate = Gate(waits=True)
    inside: list[int] = []
    most: list[int] = []

    def enter() -> None:
        for _ in range(200):
            with gate.entered() as is_inside:
                if is_inside:
                    inside.append(0)
                    with gate.entered() as is_still_inside:
                        most.append(len(inside))
                        assert is_still_inside
                    assert gate.is_mine
                    inside.pop()
                    continue
            assert gate.wait()

    in_threads(*[enter] * 4)
    assert set(most) == {1}
    assert not gate.is_mine


def test_nobody_waits_who_must_not() -> None:
    """Two threads, each inside of a gate, would wait for each other for ever."""
    gates, both = (Gate(waits=True), Gate(waits=True)), threading.Barrier(2)

    def enter(own: int) -> None:
        with gates[own].entered() as is_inside:
            assert is_inside
            both.wait(60)
            with gates[1 - own].entered() as is_inside_both:
                assert not is_inside_both
            assert not gates[1 - own].wait()
            both.wait(60)

    in_threads(lambda: enter(0), lambda: enter(1))
    assert not Gate(waits=False).wait()
    assert gates[0].wait()


def test_a_thread_that_does_not_live_in_a_fork_is_not_inside() -> None:
    gate, own, inside, go_on = Gate(waits=True), Gate(waits=True), threading.Event(), threading.Event()

    def stay() -> None:
        with gate.entered():
            inside.set()
            go_on.wait(60)

    def child() -> None:
        assert own.is_mine
        with gate.entered() as is_inside:
            assert is_inside
        with own.entered() as is_inside:
            assert is_inside

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(60)
    try:
        with own.entered():
            forks.run(child)
    finally:
        go_on.set()
        thread.join()
