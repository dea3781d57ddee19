"""The generator: results with two operators per side; deterministic, resumable, drops wrong ones."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.substitutions.graphs import graph_of
from torchrlopt import _C, _tools
from torchrlopt.errors import ModelFormatError, OptionsError
from torchrlopt.substitutions import library_text, load_library
from torchrlopt.substitutions.proof.records import axioms_hash, state_of
from training.generate import _enumerate
from training.generate.emit import drop, drop_unproved, entries, formula
from training.generate.found_library import FOUND, found_text
from training.generate.generalise import generalisations
from training.generate.generator import COUNTERS, Judge, Parameters, State, generalise, run
from training.generate.pairs import Pair

HAND_WRITTEN = library_text()
#: A library that knows nothing: what the generator finds then is all its own.
NOTHING = "# family: clean\nsubstitution remove_double_neg\n  t = Neg(x)\n  y = Neg(t)\n=>\n  y = x\n"
MATRICES = Parameters(depth=2, worlds=("matrix",))


@pytest.fixture(scope="module")
def matrices() -> State:
    return run(State(MATRICES), NOTHING)


def formulas(state: State) -> set[str]:
    return {formula(each["text"]) for each in state.accepted}


def test_finds_the_laws_of_matrices(matrices: State) -> None:
    found = " ; ".join(sorted(formulas(matrices)))
    for law in (
        "(a @ a2) @ a3 = a @ (a2 @ a3)",
        "transpose(transpose(a)) = a",
        "slice(tanh(a)) = tanh(slice(a))",
        "a + (a @ a2) = a @ (a2 + identity)",
    ):
        assert law in found, found


def test_counts_add_up(matrices: State) -> None:
    counts = matrices.counts
    assert counts["distinct"] == counts["pairs"] - counts["renamed"] - counts["common"] - counts["special"]
    judged = list(COUNTERS)[list(COUNTERS).index("not a substitution") :]
    assert sum(counts[name] for name in judged) == 2 * (counts["distinct"] - counts["refuted"])
    assert len(matrices.accepted) == counts["kept, saves"] + counts["kept, enables"] > 20


def test_every_accepted_text_is_a_substitution_of_its_own(matrices: State) -> None:
    texts = [each["text"] for each in matrices.accepted]
    assert len({_C.Library(text).hash for text in texts}) == len(texts)


@pytest.mark.nightly
def test_another_seed_finds_the_same(matrices: State) -> None:
    other = run(State(Parameters(depth=2, seed=5, worlds=("matrix",))), NOTHING)
    assert {each["text"] for each in other.accepted} == {each["text"] for each in matrices.accepted}


@pytest.mark.nightly
def test_resumed_run_equals_a_fresh_one(matrices: State, tmp_path: Path) -> None:
    path = tmp_path / "state.json"

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "judging" and done == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(State(MATRICES), NOTHING, path=path, report=interrupt)
    half = State.load(path, MATRICES)
    assert half.judged == 40
    assert len(half.accepted) < len(matrices.accepted)
    resumed = run(half, NOTHING, path=path)
    assert resumed.accepted == matrices.accepted
    assert resumed.counts == matrices.counts


def test_state_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    State(MATRICES).save(path)
    with pytest.raises(OptionsError, match="belongs to another run"):
        State.load(path, Parameters(depth=3, worlds=("matrix",)))


@pytest.mark.parametrize("depth", [0, 5])
def test_depth_has_limits(depth: int) -> None:
    with pytest.raises(ModelFormatError, match="depth: expected 1 to 4"):
        _enumerate.enumerate_pairs("matrix", depth)


def test_unknown_world_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="no world named 'moon'"):
        _enumerate.enumerate_pairs("moon", 1)


SQUARES = "a: f32[4,4], b: f32[4,4]"


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("y = MatMul(a, b)", "y = MatMul(b, a)", True),
        ("t = Add(a, b); y = Sub(t, b)", "y = Transpose(a; perm=[0,1])", False),
        ("y = ReduceSum(a; axes=[0])", "t = Transpose(a; perm=[1,0]); y = ReduceSum(t; axes=[0])", True),
        ("y = Relu(a)", "y = Gelu(a)", True),
    ],
)
def test_second_test(one: str, other: str, differs: bool) -> None:
    assert bool(_enumerate.find_difference(graph_of(SQUARES, one), graph_of(SQUARES, other))) == differs


def found_pair(state: State, text: str) -> dict[str, Any]:
    pairs = (found for all_found in state.pairs.values() for found in all_found)
    return next(
        p for p in pairs if any(text in each for each in generalisations(Pair.from_core("matrix", p)))
    )


def test_injected_wrong_pair_is_dropped(matrices: State) -> None:
    right = found_pair(matrices, "Sub(")
    sub = next(i for i, each in enumerate(_enumerate.world("matrix")["letters"]) if each["op"] == "Sub")
    wrong = json.loads(json.dumps(right))
    for op in (*wrong["left"], *wrong["right"]):
        if op[0] == sub:
            op[1], op[2] = op[2], op[1]
            break
    pair = Pair.from_core("matrix", wrong)
    assert _enumerate.find_difference(pair.before.graph(), pair.after.graph())
    assert generalise(pair) is None
    state = State(MATRICES)
    Judge(NOTHING, state).judge(pair)
    assert state.accepted == []


def test_a_known_rule_is_an_instance() -> None:
    state = run(State(Parameters(depth=1, worlds=("matrix",))), HAND_WRITTEN)
    known = {formula(each["text"]) for each in state.accepted}
    assert "a * 1.0 = a" not in known


def test_variants_are_checked_and_named(matrices: State) -> None:
    some = State(
        MATRICES, accepted=[a for a in matrices.accepted if "Tanh(" in a["text"] and a["gain"] > 0][:1]
    )
    made = entries(some, lambda *_: None)
    assert len(made) > 5
    for entry in made:
        library = _C.Library(f"# family: {entry.family}\n{entry.text}")
        assert library.names == [entry.name]
        assert entry.name.startswith("gen_")
        assert len(entry.name) == 12


@pytest.mark.nightly
def test_interrupt_keeps_the_state(tmp_path: Path) -> None:
    """Ctrl-C ends the command, and the state can be read."""
    # a process that is started in the background may have been told to ignore the signal
    command = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command += "import typer; from training.generate.__main__ import generate; typer.run(generate)"
    arguments = ["--depth", "3", "--out", str(tmp_path), "--world", "matrix"]
    process = subprocess.Popen([sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE)
    state = tmp_path / "generate_depth3.json"
    deadline = time.monotonic() + 120
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert b"interrupted" in output
    assert process.returncode == 130
    parameters = Parameters(3, 0, ("matrix",), 1, _C.Library(HAND_WRITTEN).hash)
    assert State.load(state, parameters).pairs


def test_what_is_dropped_is_gone_from_its_file(tmp_path: Path) -> None:
    def entry(name: str) -> str:
        return f"# {name}\nsubstitution {name}\n  y = Neg(x)\n=>\n  y = x\nproof z3 00000000\n"

    path = tmp_path / "generated_algebra_1.txt"
    head = "# family: generated_algebra\n# Found.\n\n"
    path.write_text(head + "\n".join(map(entry, ("gen_0", "gen_1", "gen_2"))))
    assert drop(path, {"gen_1", "gen_9"}) == 1
    assert path.read_text() == head + entry("gen_0") + "\n" + entry("gen_2")
    assert drop(path, {"gen_0", "gen_2"}) == 2
    assert not path.exists()


def test_what_has_no_proof_is_dropped(tmp_path: Path) -> None:
    source = next(iter(sorted(FOUND.glob("*.txt"))))
    path = tmp_path / source.name
    text = source.read_text(encoding="utf-8")
    path.write_text(re.sub("^proof z3 .*$", "proof z3 00000000", text, count=1, flags=re.MULTILINE))
    assert drop_unproved(tmp_path) == 1
    assert path.read_text(encoding="utf-8").count("substitution ") == text.count("substitution ") - 1


def test_what_was_found_is_proved_and_new() -> None:
    found, library = _C.Library(found_text()), load_library()
    axioms = axioms_hash()
    assert {state_of(found, name, axioms) for name in found.names} == {"proved"}
    assert not set(found.names) & set(library.names)


@pytest.mark.nightly
def test_what_was_found_is_sound() -> None:
    found = _C.Library(found_text())
    for name in found.names:
        result = _tools.verify(found, name, bindings=200)
        assert result["ok"], f"{found.text(name)}\n{result['reason']}\n{result['counter_example']}"


def test_the_stub_names_what_the_module_holds() -> None:
    stub = Path(_enumerate.__file__).with_name("_enumerate.pyi").read_text(encoding="utf-8")
    assert set(re.findall(r"^def (\w+)", stub, re.MULTILINE)) == {
        name for name in vars(_enumerate) if not name.startswith("_")
    }


def test_the_generator_has_its_own_values_and_slices_only() -> None:
    num_inputs = len(_enumerate.world("matrix")["inputs"])
    assert _enumerate.term_graph("matrix", [[-1, 0, -1]], [0]).num_operators == 0
    for wrong in ([[-1, num_inputs, -1]], [[-1, -1, -1]], [[0, 0, -1]], [[0, 99, 0]], [[99, 0, 0]]):
        with pytest.raises(IndexError):
            _enumerate.term_graph("matrix", wrong, [0])
    with pytest.raises(IndexError):
        _enumerate.term_graph("matrix", [[0, 0, 1]], [99])
    for slice, num_slices in ((0, 0), (2, 2), (-1, 2)):
        with pytest.raises(IndexError, match="no slice"):
            _enumerate.enumerate_pairs("matrix", 1, 0, slice, num_slices)


def test_graphs_of_other_outputs_differ() -> None:
    one = _C.parse_graph("graph (x: f32[2]) { y = Relu(x) return y }")
    two = _C.parse_graph("graph (x: f32[2]) { y = Relu(x) z = Relu(y) return y, z }")
    assert "outputs" in _enumerate.find_difference(two, one)
    assert "outputs" in _enumerate.find_difference(one, two)
