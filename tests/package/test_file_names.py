"""Texts in ONNX files are data: none is executed, and none prevents a file from being optimised."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import torchrlopt
from torchrlopt.api.cli.models import load_model
from torchrlopt.compile.check_file import check_files
from torchrlopt.executors.lowering.around import lower_pair
from torchrlopt.onnx import files

#: What PyTorch's older exporter, TensorFlow and people call their inputs, and what Python cannot.
ORDINARY = ["x", "input.1", "x:0", "images/0", "class", "None", "1x", "a b", "déjà", "argument_1"]


def relus(name: str) -> onnx.ModelProto:
    """Two Relu, of which one is enough, with a node without a converter behind them."""
    four = [4]
    nodes = [
        helper.make_node("Relu", [name], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Foo", ["r"], ["f"], domain="my"),
        helper.make_node("Neg", ["f"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(each, TensorProto.FLOAT, four) for each in (name, "y", "f")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:2], value_info=infos[2:])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def marker(folder: Path) -> tuple[Path, str]:
    """A file, and Python as the name of a parameter that makes it when it is run."""
    path = folder / "RAN"
    return path, f"x=open({str(path)!r},'w').write('1')"


@pytest.mark.parametrize("name", ORDINARY)
def test_a_file_is_rewritten_whatever_its_input_is_called(
    name: str, tmp_path: Path, checked_here: None
) -> None:
    path = saved(tmp_path, relus(name))
    report = torchrlopt.optimise_onnx(
        path, tmp_path / "out.onnx", cache=False, verify=False, searcher="greedy"
    )
    assert report.kept == "rewritten"
    written = onnx.load(tmp_path / "out.onnx")
    assert [value.name for value in written.graph.input] == [name]
    assert [node.op_type for node in written.graph.node] == ["Relu", "Foo", "Neg"]
    assert check_files(path, tmp_path / "out.onnx", seed=0).around == ("my::Foo",)


def test_the_name_of_an_input_is_not_run_by_the_check(tmp_path: Path) -> None:
    ran, name = marker(tmp_path)
    path = saved(tmp_path, relus(name))
    report = torchrlopt.optimise_onnx(path, tmp_path / "out.onnx", cache=False, searcher="greedy")
    assert report.kept == "rewritten"
    assert not ran.exists()


def test_the_name_of_a_free_size_is_not_run(tmp_path: Path) -> None:
    ran, name = marker(tmp_path)
    proto = relus("x")
    for each in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        each.type.tensor_type.shape.dim[0].dim_param = name.removeprefix("x=")
    path = saved(tmp_path, proto)
    report = torchrlopt.optimise_onnx(path, tmp_path / "out.onnx", cache=False, searcher="greedy")
    assert report.kept == "rewritten"
    check_files(path, tmp_path / "out.onnx", seed=0)  # the same in this process, which could make the file
    assert not ran.exists()


def test_the_name_of_an_input_is_not_run_by_other_commands(tmp_path: Path) -> None:
    ran, name = marker(tmp_path)
    proto = relus(name)
    del proto.graph.node[2:]
    proto.graph.node[1].output[0] = "y"
    module, inputs = load_model(str(saved(tmp_path, proto)))
    assert module(*inputs)[0].shape == (4,)
    assert not ran.exists()


def test_names_of_an_input_and_of_a_cut_do_not_meet(tmp_path: Path) -> None:
    model = files.load(saved(tmp_path, relus("argument_1")))
    for around in lower_pair(model, model):
        targets = [node.target for node in around.module.graph.find_nodes(op="placeholder")]
        assert len(targets) == len(set(targets)) == 2
        assert all(target.isidentifier() for target in targets)
