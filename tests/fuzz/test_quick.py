"""A small share of what `make fuzz` runs, with a fixed seed."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.outcome import Total
from tests.fuzz.shards import guarded
from tests.fuzz.subjects import SUBJECTS

#: Fuzzer, and cases of it.
SHARE = {"rules": 64, "opinfo": 8, "specials": 8, "files": 20, "precision": 6}
SEED = 20


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("what", SHARE)
def test_nothing_is_found(what: str) -> None:
    subject = SUBJECTS[what]
    total, fuzzer = Total(), subject.make(SEED)
    for index in random.Random(SEED).sample(range(subject.num_cases), SHARE[what]):
        total.add(index, guarded(fuzzer, index))
    assert [(index, outcome.kind, outcome.reason) for index, outcome in total.failures] == []
    assert total.kinds["right"] > SHARE[what] / 2, total.skipped
