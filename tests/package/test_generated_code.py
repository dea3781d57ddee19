"""No text but names becomes Python source: torchrlopt/generated_code.py, and code that bypasses it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import fx

from tests.package.test_floors import PACKAGE
from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.lazy_code import forward_of, lazy_module
from torchrlopt.generated_code import checked

MARKS = "x=MARKS.append(1)"
BAD = [MARKS, "a b", "1x", "", "class", "None", "x:0", "input.1", "x\ny", 'a", print(1), "', "*x", "x\0"]


def chain() -> tuple[fx.Graph, fx.Node]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.relu, (x,)),))
    return graph, x


def test_names_pass() -> None:
    graph, x = chain()
    assert checked(graph) is graph
    with graph.inserting_after(x):
        graph.get_attr("layers.0.weight")
        graph.placeholder("größe")
    assert checked(graph) is graph


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("kind", ["placeholder", "get_attr", "call_module", "call_method", "keyword"])
def test_whatever_else_does_not(kind: str, text: str) -> None:
    graph, x = chain()
    with graph.inserting_after(x):
        if kind == "placeholder":
            graph.placeholder(text)
        elif kind == "keyword":
            graph.call_function(torch.relu, (x,), {text: 1})
        elif kind == "get_attr":
            graph.create_node(kind, f"weights.{text.replace('.', '-')}")
        else:
            graph.create_node(kind, text.replace(".", "-"), (x,))
    with pytest.raises(LoweringError, match="is no name"):
        checked(graph)


def test_a_graph_that_was_changed_is_looked_at_again() -> None:
    graph, _ = chain()
    module = lazy_module(torch.nn.Module(), graph)
    next(iter(module.graph.find_nodes(op="placeholder"))).target = MARKS
    with pytest.raises(LoweringError, match="is no name"):
        forward_of(module)
    with pytest.raises(LoweringError, match="is no name"):
        module(torch.ones(2))


# ---- who makes code

#: Each with the reason why no text of a file gets there.
ALLOWED = {
    ("__init__.py", "import_module"): "a table in the file",
    ("api/bench/rounds.py", "torch.load"): "outputs of the command's own processes, tensors only",
    ("api/cli/models.py", "import_module"): "the module that the user named on the command line",
    ("api/bench/contestants.py", "import_module"): "a row of the contestants",
    ("torch_private/exporter.py", "import_module"): "modules of torch.onnx",
    ("env/__init__.py", "import_module"): "a table in the file",
    ("executor_table.py", "import_module"): "a row of the table",
    ("searcher_table.py", "import_module"): "a row of the table",
    ("loading.py", "import_module"): "modules that torch loads late",
    ("executors/onnx_runtimes/session_call.py", "import_module"): "the package of a runtime",
    ("limited/child.py", "import_module"): "the module that the parent asks for",
    ("limited/child.py", "exec_module"): "the same, by its path",
    ("executors/isolation/task_child.py", "run_path"): "the file of a runtime that the parent names",
    ("compile/repro_source.py", "python_code"): "goes through `checked`",
    ("executors/weights/overflow.py", "recompile"): "a lazy module, which goes through `checked`",
    ("executors/eager/dispatch.py", "recompile"): "a lazy module, which goes through `checked`",
    ("capture/exported.py", "recompile"): "names that torch.export made of the user's program",
    ("compile/export_program.py", "recompile"): "names that torch.export made of the user's program",
    ("api/saved.py", "torch.export.load"): "a file that the user trusts, see there, or has just saved",
}

MAKERS = {
    "exec", "eval", "compile", "__import__", "import_module", "exec_module", "python_code", "run_path",
    "run_module", "sympify", "parse_expr", "recompile", "torch.load", "torch.export.load", "pickle.load",
    "pickle.loads", "os.system", "os.popen",
}  # fmt: skip


def calls(path: Path) -> list[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def name_of(call: ast.Call) -> str:
    """What is called; `torch.compile`, `re.compile` and `model.eval` make no code of texts."""
    dotted = ast.unparse(call.func)
    last = dotted.rpartition(".")[2]
    return dotted if dotted in MAKERS or last in ("compile", "eval") else last


def test_only_known_places_make_code_of_text() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), name_of(call))
        for path in PACKAGE.rglob("*.py")
        for call in calls(path)
        if name_of(call) in MAKERS
    }
    assert found - set(ALLOWED) == set(), "say in ALLOWED why no text of a file gets there"
    assert set(ALLOWED) - found == set(), "gone"


def test_every_module_of_a_graph_is_checked() -> None:
    """`GraphModule` generates code at once, `_LazyGraphModule` later."""
    unchecked = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        for call in calls(path)
        if name_of(call) in ("GraphModule", "_LazyGraphModule", "python_code")
        and not any(isinstance(part, ast.Call) and name_of(part) == "checked" for part in ast.walk(call))
    ]
    assert unchecked == []
