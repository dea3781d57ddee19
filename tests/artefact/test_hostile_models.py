"""`.rlopt` files from anybody: refused with a type, or run without code of theirs."""

from __future__ import annotations

import functools
import json
import operator
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchrlopt
from tests.artefact.hostile import read, written
from tests.artefact.models import made, saved
from torchrlopt.artefact import functions
from torchrlopt.artefact.file import FORMAT
from torchrlopt.artefact.sampled import Sampled
from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.judge.budget import METRICS


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, torch.Tensor]]:
    model, inputs = made("packed")
    path = tmp_path_factory.mktemp("saved") / "fast.rlopt"
    saved(model, inputs, path)
    return read(path)


def _set(whole: Any, *path: Any, to: Any) -> None:
    *names, last = [key(whole) if callable(key) else key for key in path]
    for key in names:
        whole = whole[key]
    whole[last] = to


GRAPH = ("content", "graphs", 0)
RUN = (*GRAPH, "packed", "run")


def _packed(whole: Any) -> int:
    """Position of the weight of a transposed convolution: which others there are depends on the processor."""
    values = functools.reduce(operator.getitem, (*RUN, "values"), whole)
    return next(at for at, value in enumerate(values) if "packed" in value)


def _used(whole: Any) -> int:
    """Position of a vector that calls read, such as a packed weight."""
    values = functools.reduce(operator.getitem, (*RUN, "values"), whole)
    read = [int(value["tensor"]) for value in values if "tensor" in value]
    return next(at for at in read if len(whole["tensors"][at]["shape"]) == 1)


PACKED = (*RUN, "values", _packed, "packed")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((*RUN, "calls", 0, 0), "aten.from_file.default", "calls no function that it may"),
        ((*RUN, "calls", 0, 0), "torch.load", "calls no function"),
        ((*RUN, "calls", 0, 0), "method.__reduce_ex__", "calls no function"),
        ((*RUN, "calls", 0, 0), "aten.add.__class__", "calls no function"),
        ((*RUN, "calls", 0, 0), ["operator.getitem"], "calls no function"),
        ((*RUN, "calls", 0, 1), [{"v": 99}], "reads a value that does not exist"),
        ((*RUN, "calls", 0, 1), [{"v": True}], "reads a value that does not exist"),
        ((*RUN, "calls", 0, 1), [{"dtype": "os"}], "an argument of no known kind"),
        ((*RUN, "calls", 0), ["kernel.sequence", [[0, [], [0]]], {}], "a sequence of kernels"),
        ((*RUN, "calls", 0), ["kernel.sequence", [["__class__", [], []]], {}], "a sequence of kernels"),
        ((*RUN, "values", 0), {"tensor": 99}, "there is no such tensor"),
        ((*PACKED, "calls", 0), ["aten.select.int", [{"v": 0}, 9, 0], {}], "a weight cannot be packed"),
        ((*RUN, "outputs"), [{"v": 10**9}], "reads a value"),
        ((*GRAPH, "packed", "watched"), [7], "what must be finite is no input"),
        ((*GRAPH, "results"), {"list": [{"tensor": 9}]}, "a description of a call is malformed"),
        ((*GRAPH, "results"), {"named": [["def", {"tensor": 0}]]}, "names of a tuple are no names"),
        ((*GRAPH, "results"), {"named": [["_make", {"tensor": 0}]]}, "names of a tuple are no names"),
        ((*GRAPH, "results"), {"named": [["a b", {"tensor": 0}]]}, "names of a tuple are no names"),
        ((*GRAPH, "results"), {"named": [["ﬁ", {"tensor": 0}], ["fi", {"tensor": 1}]]}, "are no names"),
        ((*GRAPH, "results"), {"named": [[0, {"tensor": 0}]]}, "names of a tuple are no texts"),
        ((*GRAPH, "arguments", "tensors", 0, "shape"), [-1], "no type, sizes and strides"),
        ((*GRAPH, "arguments", "positional"), [1], "names of parameters are no texts"),
        (("tensors", _used, "shape"), [2**40], "other bytes than its type and sizes say"),
        (("tensors", _used, "stride"), [2**62], "a tensor has no sizes and strides"),
        (("tensors", _used, "dtype"), "float128", "no known type"),
        (("tensors", _used, "part"), "../../etc/passwd", "its bytes are missing"),
        ((*RUN, "calls", 0), ["method.expand", [{"v": 0}, [2**31, 256]], {}], "that is too large"),
        ((*RUN, "calls", 0), ["method.expand", [{"v": 0}, 2**16, 2**16], {}], "that is too large"),
        ((*RUN, "calls", 0), ["aten.zeros.default", [[2**16, 2**16]], {}], "that is too large"),
        (("format",), FORMAT + 1, "another format"),
        (("content", "graphs"), [], "there is no graph"),
        ((*GRAPH, "budgets"), [{}, {}], "several budgets"),
        ((*GRAPH, "budgets"), [{"max_error": 0.1, "metric": "x", "exact": {}}], "no such metric"),
        ((*GRAPH, "budgets"), [{"max_error": 0.1, "metric": "rms", "exact": {}}], "other fields"),
        (("more",), 1, "an object has other fields"),
    ],
)
def test_malformed_content_is_refused(
    path: tuple[Any, ...], value: Any, message: str, content: Any, tmp_path: Path
) -> None:
    whole, parts = json.loads(json.dumps(content[0])), content[1]
    _set(whole, *path, to=value)
    (tmp_path / "bad.rlopt").write_bytes(written(whole, parts))
    with pytest.raises(ModelFormatError, match=message):
        torchrlopt.load(tmp_path / "bad.rlopt")


class Code:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    "make",
    [
        lambda data: b"",
        lambda data: data[:1000],
        lambda data: data[:-1],
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: pickle.dumps(Code()),
        lambda data: data.replace(b"aten", b"atem", 1).replace(b"mkldnn", b"mkldnm", 1),
        lambda data: data.replace(b'\\"calls\\"', b'\\"callz\\"', 1),
    ],
)
def test_damaged_files_are_refused(
    make: Callable[[bytes], bytes], content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.rlopt").write_bytes(make(written(*content)))
    with pytest.raises(ModelFormatError):
        torchrlopt.load("bad.rlopt")
    assert not Path("ran").exists()


def test_deeply_nested_content(content: Any, tmp_path: Path) -> None:
    whole, parts = json.loads(json.dumps(content[0])), content[1]
    deep: Any = 0
    for _ in range(200):
        deep = [deep]
    _set(whole, *RUN, "calls", 0, 1, to=[deep])
    (tmp_path / "deep.rlopt").write_bytes(written(whole, parts))
    with pytest.raises(ModelFormatError, match="nested too deep"):
        torchrlopt.load(tmp_path / "deep.rlopt")


@pytest.mark.parametrize("kind", ["a folder", "a pipe"])
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it.rlopt"
    (os.mkdir if kind == "a folder" else os.mkfifo)(path)
    with pytest.raises(ModelFormatError):
        torchrlopt.load(path)


ONES = torch.ones(2, 8, 4, 4)
LOWEST = torch.full((2,), torch.iinfo(torch.int64).min)
RNN = ("rnn_tanh", False, 1, False, False)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        (
            "torch._scaled_dot_product_flash_attention_for_cpu",
            (ONES, ONES, torch.ones(2, 8, 9999, 4)),
        ),
        ("torch._scaled_dot_product_flash_attention_for_cpu", (ONES, ONES[:1], ONES[:1])),
        (
            "torch._native_batch_norm_legit_no_training",
            (ONES, torch.ones(1), torch.ones(8), torch.ones(8), torch.ones(8), 0.1, 1e-5),
        ),
        ("aten._weight_norm_interface.default", (ONES, torch.ones(1))),
        ("aten._weight_norm_interface.default", (ONES, torch.ones(1).expand(2, 1, 1, 1))),
        ("aten.native_group_norm.default", (ONES, None, None, 2, 8, 10**6, 2, 1e-5)),
        ("aten.native_group_norm.default", (ONES, torch.ones(1).expand(8), None, 2, 8, 16, 2, 1e-5)),
        ("torchrlopt.recurrent.default", (ONES[0], [torch.ones(1, 8, 2)], [torch.ones(2, 1)] * 2, *RNN)),
        *(
            ("aten._embedding_bag.default", (ONES[0, 0], torch.tensor([1, 2]), *others))
            for others in [
                (torch.tensor([0, 2, 1]),),
                (torch.tensor([0, -5, 1]),),
                (torch.tensor([1, 2]),),
                (torch.tensor([0, 3]),),
                (torch.tensor([], dtype=torch.int64),),
                (torch.tensor([0, 1]), False, 0, False, None, True),
            ]
        ),
    ],
)
def test_operators_that_trust_their_caller_are_checked(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(UnsupportedError, match="do not fit"):
        functions.checked_of(name)(*args)


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("aten._upsample_bilinear2d_aa.default", (ONES, [9, 9], False, 1e-4, None), {}),
        ("aten._upsample_bicubic2d_aa.default", (ONES, [9, 9], False, None, 1e-15), {}),
        ("aten.div.Tensor_mode", (LOWEST, torch.tensor([1, -1])), {"rounding_mode": "trunc"}),
        ("aten.div_.Scalar_mode", (LOWEST, -1), {"rounding_mode": "trunc"}),
    ],
)
def test_numbers_that_end_a_process_are_refused(
    name: str, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedError, match=r"a scale is not that of the sizes|a quotient has no value"):
        functions.checked_of(name)(*args, **named)


def test_an_exact_form_of_other_sizes_is_refused() -> None:
    exact = {"values": [{"given": 0}], "calls": [], "outputs": [{"v": 0}]}

    class Run:
        num_outputs = 1

        def __call__(self, given: Any) -> Any:
            return [torch.zeros(4, 3)]

    budget = {"max_error": 0.1, "metric": "rms", "exact": exact}
    sampled = Sampled(Run(), budget, 1, lambda number: None, METRICS.__getitem__)
    sampled([torch.ones(5, 7)])
    with pytest.raises(ModelFormatError, match="results of other sizes"):
        sampled([torch.ones(5, 7)])


def test_other_scales_and_quotients_pass() -> None:
    resize = functions.checked_of("aten._upsample_bilinear2d_aa.default")
    for sizes, scale in (([1, 1], None), ([5, 5], 1.3), ([1, 1], 0.3), ([40, 40], 10.0)):
        assert resize(ONES, sizes, False, scale, scale).shape[2:] == torch.Size(sizes)
    divide = functions.checked_of("aten.div.Tensor_mode")
    assert divide(LOWEST, torch.tensor([-1, 2]), rounding_mode="floor").tolist()[1] == -(2**62)
    assert divide(ONES, 2, rounding_mode="trunc").sum() == 0


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("kernel.linear", (10, 0, 0, 0.0, 0.0)),
        ("kernel.convolve", (8, 1, 1, 1, 1, *[0] * 4, 1, 1, 1, 0, 0, 0, 0)),
    ],
)
def test_a_kernel_without_weights(name: str, numbers: tuple[float, ...]) -> None:
    with pytest.raises(UnsupportedError, match="a kernel has no weight"):
        functions.checked_of(name)(ONES, None, numbers)


def test_a_stride_that_crashes_the_packed_kernel(content: Any, tmp_path: Path) -> None:
    whole, parts = json.loads(json.dumps(content[0])), content[1]
    _set(whole, *GRAPH, "packed", "apart", to=[])
    _set(whole, *GRAPH, "packed", "watched", to=[])
    calls = whole["content"]["graphs"][0]["packed"]["run"]["calls"]
    (call,) = [each for each in calls if each[0] == "mkldnn._convolution_transpose_pointwise.default"]
    call[1][5] = [2, 65536]
    (tmp_path / "bad.rlopt").write_bytes(written(whole, parts))
    loaded = torchrlopt.load(tmp_path / "bad.rlopt")
    with torch.no_grad(), pytest.raises(UnsupportedError, match="a stride is too large"):
        loaded(torch.randn(512, 256), torch.randn(1, 8, 20, 20))


@pytest.mark.parametrize(("seed", "cases"), [(1, "100"), pytest.param(2, "2000", marks=pytest.mark.nightly)])
def test_mutations(seed: int, cases: str, tmp_path: Path) -> None:
    """In a process of its own: none crashes, runs code, or raises another error on loading."""
    command = [sys.executable, "-m", "tests.artefact.hostile", str(seed), cases, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["refused"] > int(cases) / 4
    assert counts["ran"] > int(cases) / 20
