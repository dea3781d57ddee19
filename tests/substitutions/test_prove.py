"""The prover: it must not prove wrong substitutions, and its records must match the library."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import z3

from tests.crosses import nightly
from tests.substitutions.mutants import MUTANTS
from torchrlopt import _C
from torchrlopt.errors import UnsupportedError
from torchrlopt.substitutions import fires, library_text, load_library
from torchrlopt.substitutions.proof import arithmetic, layers
from torchrlopt.substitutions.proof.layers import Effort, check_one, check_texts
from torchrlopt.substitutions.proof.prover import prove
from torchrlopt.substitutions.proof.records import (
    Record,
    axioms_hash,
    read_record,
    state_of,
    text_hash,
    texts_of,
    with_records,
)

FOLDER = Path(__file__).parent
LIBRARY = load_library(allow_assumed=True)
WRONG = (FOLDER / "known_wrong.txt").read_text(encoding="utf-8")
RIGHT = (FOLDER / "known_right.txt").read_text(encoding="utf-8")
QUICK = Effort(bindings=40, seeds=2, instances=8, timeout_s=20)
_BLOCKS = {
    block.split()[1]: block
    for block in re.split(r"^(?=substitution )", library_text(), flags=re.MULTILINE)[1:]
}
#: Every second one: all of them go through the exact evaluation in test_mutants.py.
SAMPLE = MUTANTS[::2]
#: Z3 works on them until its time is over: four seconds each.
SLOW = {
    "add_enlarged_conv", "merge_gated_experts", "merge_grouped_conv_shared_input", "merge_attention_heads",
    "add_batchnorm_to_conv", "recognise_attention", "absorb_query_scale_into_attention",
}  # fmt: skip


# ---- what is wrong is not proved


@pytest.mark.parametrize("name", _C.Library(WRONG).names)
def test_known_wrong_is_not_proved(name: str) -> None:
    found = check_one(WRONG, (name,), QUICK)
    assert not found.is_sound
    assert found.record is None
    proof = prove(_C.Library(WRONG), name, 8, 20)
    assert not proof.is_proved
    assert proof.reason


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [nightly(*each) if each[0] in SLOW else each for each in SAMPLE],
    ids=[name for name, _, _ in SAMPLE],
)
def test_mutant_is_not_proved(name: str, old: str, new: str) -> None:
    """By the prover alone, without the evaluation that would have refused it before."""
    assert old in _BLOCKS[name], "the mutant no longer fits the library"
    library = _C.Library(_BLOCKS[name].replace(old, new))
    proofs = [prove(library, each, 10, 4) for each in library.names]
    assert not all(proof.is_proved for proof in proofs)


def test_wrong_at_one_rank_only_is_not_proved() -> None:
    """Channels counted from the end: right for images, wrong for volumes."""
    text = """substitution wrong
  t1 = Conv(x, w; group=1, @conv1)
  t2 = Conv(x2, w2; group=1, @conv1)
  y = Add(t1, t2)
=>
  u1 = Concat(x, x2; axis=-3)
  u2 = Concat(w, w2; axis=-3)
  y = Conv(u1, u2; group=1, @conv1)
where
  same_shape(t1, t2)
"""
    assert not prove(_C.Library(text), "wrong", 8, 20).is_proved


@pytest.mark.parametrize("name", _C.Library(RIGHT).names)
def test_known_right_is_sound(name: str) -> None:
    assert check_one(RIGHT, (name,), Effort(bindings=40, instances=0)).is_sound


# ---- what is right is proved, again


@pytest.mark.parametrize(
    "name",
    [
        "merge_matmul_shared_lhs", "merge_biased_linear_shared_input", "reassociate_matmul",
        "distribute_matmul_shared_lhs", "concat_sum_of_linears", "fold_batchnorm_into_conv",
        "add_convs_by_stacking", "merge_transposes_of_matmul", "recognise_gelu", "fuse_conv_relu",
        "merge_relu_after_split", "remove_split_of_concat", "recognise_softmax", "swap_linear_mean",
        "fold_rmsnorm_into_linear", "compose_pointwise_then_conv",
    ],
)  # fmt: skip
def test_sample_is_proved(name: str) -> None:
    proof = prove(LIBRARY, name, 8, 30)
    assert proof.is_proved, proof.reason
    assert proof.num_cases >= 1


def test_proof_is_reproducible() -> None:
    first, second = (prove(LIBRARY, "fold_batchnorm_into_conv", 8, 60) for _ in range(2))
    assert (first.is_proved, first.num_cases, first.reason) == (
        second.is_proved,
        second.num_cases,
        second.reason,
    )


def test_covers_families_of_several_sizes() -> None:
    proof = prove(LIBRARY, "merge_matmul_shared_lhs", 24, 30)
    assert len(proof.members) >= 3
    assert proof.members[0] == 2


# ---- limits


def test_steps_limit_z3_not_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no steps allowed nothing is proved, and nothing hangs or is taken for proved."""
    monkeypatch.setattr("torchrlopt.substitutions.proof.comparison.REAL_LIMIT", 1)
    proof = prove(LIBRARY, "fold_batchnorm_into_conv", 2, 60)
    assert not proof.is_proved


def test_safeguard_of_time_ends_a_proof() -> None:
    proof = prove(LIBRARY, "recognise_attention", 8, 0.0)
    assert not proof.is_proved
    assert "no proof within 0 s" in proof.reason


def test_interrupted_z3_raises() -> None:
    """Z3 swallows SIGINT and says `unknown`."""

    class Interrupted:
        def check(self) -> z3.CheckSatResult:
            return z3.unknown

        def reason_unknown(self) -> str:
            return "interrupted from keyboard"

    with pytest.raises(KeyboardInterrupt):
        arithmetic.check(Interrupted())  # type: ignore[arg-type]


def test_ctrl_c_while_work_is_handed_out_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool(ProcessPoolExecutor):
        def submit(self, *_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            asked.append((wait, cancel_futures))
            super().shutdown(wait, cancel_futures=cancel_futures)

    asked: list[tuple[bool, bool]] = []
    monkeypatch.setattr(layers, "ProcessPoolExecutor", Pool)
    with pytest.raises(KeyboardInterrupt):
        list(check_texts(RIGHT, [["r3_fold_batchnorm"]], QUICK, jobs=1))
    assert asked[0] == (False, True)


def test_ctrl_c_ends_the_command() -> None:
    command = [
        sys.executable,
        "-c",
        # a process that is started in the background may have been told to ignore the signal
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from torchrlopt.api.cli import main; main()",
        "substitutions",
        "prove",
        "-j",
        "1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 2:  # before it has a worker, Python is still importing
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130


def test_without_z3_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"\[prove\]"):
        list(check_texts(RIGHT, [["r3_fold_batchnorm"]], QUICK))
    assert list(check_texts(RIGHT, [["r3_fold_batchnorm"]], Effort(bindings=10, instances=0)))


# ---- records


@pytest.mark.parametrize("first", texts_of(LIBRARY))
def test_record_fits_its_text(first: str) -> None:
    """Edited text, edited axioms: prove again, `torchrlopt substitutions prove --write`."""
    state = state_of(LIBRARY, first, axioms_hash())
    assert state in ("proved", "tested", "assumed"), f"{first} is {state}"


def test_most_are_proved() -> None:
    hand = LIBRARY.names
    proved = [name for name in hand if state_of(LIBRARY, name) == "proved"]
    assert len(proved) >= 0.8 * len(hand)


def test_edited_text_is_stale() -> None:
    text = "substitution one\n  t = Neg(x)\n  y = Neg(t)\n=>\n  y = x\n"
    library = _C.Library(text)
    record = Record("z3", text_hash(library, "one"), f"axioms={axioms_hash()} cases=1")
    proved = with_records(text, {"one": record})
    assert read_record(_C.Library(proved), "one") == record
    assert state_of(_C.Library(proved), "one", axioms_hash()) == "proved"
    assert state_of(_C.Library(proved), "one", "00000000") == "stale"
    edited = proved.replace("=>\n  y = x\n", "=>\n  y = Neg(t)\n")
    assert state_of(_C.Library(edited), "one", axioms_hash()) == "stale"
    assert state_of(library, "one") == "unchecked"


def test_record_changes_neither_hash_nor_comments() -> None:
    text = (
        "# family: clean\n# about one\nsubstitution one\n  y = Neg(x)\n=>\n  y = Neg(x)\nproof tested\n\n"
        "# about two\nsubstitution two\n  y = Abs(x)\n=>\n  y = Abs(x)\n"
    )
    new = with_records(text, {"one": Record("z3", "12e45678"), "two": Record("evaluation", "00000001")})
    before, after = _C.Library(text), _C.Library(new)
    assert before.hash == after.hash
    assert [after.doc(name) for name in after.names] == ["about one", "about two"]
    assert after.proof("one") == "z3 12e45678", "a hash is no number"
    assert with_records(new, {"one": Record("z3", "12e45678")}) == new
    assert before.proof_hash("one") == after.proof_hash("one") != before.proof_hash("two")


def test_optional_inputs_share_a_record() -> None:
    library = _C.Library(_BLOCKS["fuse_conv_relu"])
    assert texts_of(library) == {"fuse_conv_relu": ["fuse_conv_relu", "fuse_conv_relu_no_b"]}


def test_assumed_is_off_by_default() -> None:
    text = "substitution one\n  y = Neg(x)\n=>\n  y = Neg(x)\nproof assumed 00000000 because\n"
    assert _C.Library(text).names == ["one"]
    assert _C.Library(text, allow_assumed=False).names == []
    assert _C.Library(text).proof("one") == "assumed 00000000 because"


def test_fires_names_substitutions_of_the_library() -> None:
    assert set(fires()) <= set(load_library().names)
