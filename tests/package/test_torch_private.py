"""Private names of PyTorch are used in `torchrlopt/torch_private/` only, and each is in its table.

A private name begins with one underscore: as a part of an import from torch; in a chain of attributes that
begins with `torch`; or as an attribute of any object, also through `getattr`, unless a class or function of
this package has that name. Names of operators in `torch.ops` do not count: exported graphs contain the same
names.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from torchrlopt.torch_private.names import TRIED, WHERE_MISSING

PACKAGE = Path(__file__).resolve().parents[2] / "torchrlopt"
HOME = PACKAGE / "torch_private"
FILES = sorted(PACKAGE.rglob("*.py"))
OPERATORS = ("torch.ops.", "aten.", "_aten.", "prims.")
DOCUMENTED = {"os._exit"}
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
BY_NAME = ("getattr", "hasattr", "setattr", "attrgetter")


def is_private(name: str) -> bool:
    return re.fullmatch(r"_[^_]\w*", name) is not None


def dotted(node: ast.expr) -> str:
    """A chain of attributes as text; "()" stands for what is no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "()"


@functools.cache
def own_names() -> set[str]:
    """What classes and functions of the package are and have."""
    found: set[str] = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.FunctionDef() | ast.ClassDef():
                    found.add(node.name)
                case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                    found.add(name)
                case ast.Name(name, ast.Store()) | ast.arg(name):
                    found.add(name)
    return found


def private_names(source: str) -> Iterator[str]:
    """The private names of torch in a module, as the table writes them."""
    tree = ast.parse(source)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                imported = [each.name for each in names]
                yield from (each for each in imported if is_torchs(each))
            case ast.ImportFrom(module, names):
                yield from (name for each in names if is_torchs(name := f"{module}.{each.name}"))
            case ast.Attribute() if id(node) not in inner and dotted(node).startswith("torch."):
                if is_torchs(dotted(node)):
                    yield dotted(node)
            case ast.Attribute(_, name) if is_foreign(name) and not dotted(node).startswith("torch."):
                if dotted(node) not in DOCUMENTED and not dotted(node).startswith(OPERATORS):
                    yield f".{name}"
            case ast.Call(ast.Name(called) | ast.Attribute(_, called), [*_, ast.Constant(str(name))]) if (
                called in BY_NAME and is_foreign(name)
            ):
                yield f".{name}"
            case ast.Call(ast.Name(called), [_, ast.Constant(str(name)), *_]) if (
                called in BY_NAME and is_foreign(name)
            ):
                yield f".{name}"
            case ast.Constant(str(name)) if re.fullmatch(r"torch(\.\w+)+", name) and is_torchs(name):
                yield name  # for importlib


def is_torchs(name: str) -> bool:
    is_operator = name.startswith(OPERATORS)
    return name.startswith("torch.") and not is_operator and any(map(is_private, name.split(".")))


def is_foreign(name: str) -> bool:
    return is_private(name) and name not in own_names() | OF_NAMED_TUPLES


def test_private_names_stand_in_one_place() -> None:
    others = [path for path in FILES if not path.is_relative_to(HOME)]
    found = {str(path): list(private_names(path.read_text(encoding="utf-8"))) for path in others}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_table_has_every_name_and_no_other() -> None:
    sources = [path.read_text(encoding="utf-8") for path in HOME.glob("*.py") if path.name != "names.py"]
    used = {name for source in sources for name in private_names(source)}
    listed = [name for names in WHERE_MISSING.values() for name in names.split()]
    assert used == set(listed)
    assert len(set(listed)) == len(listed)


def test_the_installed_release_was_tried_or_is_newer() -> None:
    release = tuple(map(int, torch.__version__.partition("+")[0].split(".")[:2]))
    assert release >= min(tuple(map(int, each.split(".")[:2])) for each in TRIED)
