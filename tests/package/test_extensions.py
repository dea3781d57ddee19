"""The extension modules: their stubs list their contents, and the product loads only the core."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from torchrlopt import _C, _tools
from training.generate import _enumerate

MODULES = pytest.mark.parametrize("module", [_C, _tools, _enumerate], ids=lambda module: module.__name__)


def stub_of(module: ModuleType) -> ast.Module:
    built = Path(module.__file__ or "")
    name = module.__name__.rpartition(".")[2]
    return ast.parse((built.parent / f"{name}.pyi").read_text(encoding="utf-8"))


def named(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """What the stub defines by name; aliases of types are the stub's own."""
    found: dict[str, ast.stmt] = {}
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            found[each.name] = each
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = each
    return found


def public(holder: object) -> set[str]:
    """Names that the built module, or one of its classes, defines itself."""
    names = {name for name, value in vars(holder).items() if not inspect.ismodule(value)}
    return {name for name in names if not name.startswith("_") or name in ("__init__", "__len__", "__call__")}


def parameters(stub: ast.FunctionDef) -> list[str]:
    args = stub.args
    return [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs) if each.arg != "self"]


def built_parameters(function: object) -> list[str]:
    """Read from the first line of the docstring, which pybind11 writes."""
    line = (inspect.getdoc(function) or "").splitlines()[0]
    depth, names = 0, []
    inner = line[line.index("(") + 1 :]
    for match in re.finditer(r"[\[(<{]|[\])>}]|(?<!\w)(\w+)(?=:)", inner):
        if match.group(1):
            names += [match.group(1)] if depth == 0 else []
        else:
            depth += 1 if match.group() in "[(<{" else -1
        if depth < 0:
            break
    return [name for name in names if name != "self"]


@MODULES
def test_the_stub_names_what_the_module_holds(module: ModuleType) -> None:
    stub = named(stub_of(module).body)
    assert set(stub) == public(module)
    for name, entry in stub.items():
        if isinstance(entry, ast.ClassDef):
            assert set(named(entry.body)) | {"__init__"} == public(getattr(module, name)) | {"__init__"}, name


@MODULES
def test_the_stub_has_the_parameters_of_the_module(module: ModuleType) -> None:
    compared = 0
    for name, entry in named(stub_of(module).body).items():
        if isinstance(entry, ast.FunctionDef):
            assert parameters(entry) == built_parameters(getattr(module, name)), name
            compared += 1
        elif isinstance(entry, ast.ClassDef):
            built = getattr(module, name)
            for method, stub in named(entry.body).items():
                if not isinstance(stub, ast.FunctionDef) or method == "__len__":
                    continue
                if isinstance(inspect.getattr_static(built, method), property):
                    assert [ast.unparse(each) for each in stub.decorator_list] == ["property"], method
                    continue
                assert parameters(stub) == built_parameters(getattr(built, method)), f"{name}.{method}"
                compared += 1
    assert compared >= 3


def test_the_core_holds_nothing_of_the_tools() -> None:
    # The release is stripped of symbols, so texts of errors stand for the parts that raise them.
    core, tools = (Path(module.__file__ or "").read_bytes() for module in (_C, _tools))
    for text in (
        b"the reference has no such operator",
        b"only the graph before can be evaluated: ",
    ):
        assert text in tools
        assert text not in core
