"""Writes accepted generalisations as library texts: variants, names, families, files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchrlopt import _C
from torchrlopt.substitutions import file_text
from torchrlopt.substitutions.proof.records import axioms_hash, state_of
from training.generate.generalise import FUNCTION, NAME
from training.generate.generator import NUM_BINDINGS, NUM_SEEDS, State, holds, holds_widely

MAX_LINES = 330  # per file

#: Elementwise functions of real models; a rule that holds for any function is written for each of them.
FUNCTIONS = ("Relu", "Gelu(approximate)", "Sigmoid", "Tanh", "Swish(alpha)", "HardSwish")
_EXACT_OPS = {
    "Add", "Sub", "Mul", "Neg", "Relu", "Transpose", "Reshape", "Concat", "Split", "Slice", "Pad",
}  # fmt: skip
_ARITHMETIC = {"Add", "Sub", "Mul", "Neg", FUNCTION}
MAX_SHIPPED_LOSS = 0.002  # relative, for a direction that only enables others
_LINE = re.compile(r"^  (?P<outs>[^=]+) = (?P<op>\w+)\((?P<ins>[^;)]*)(?:; (?P<attrs>.*))?\)$", re.MULTILINE)
_NAME = re.compile(r"^substitution (\w+)", re.MULTILINE)
_HEAD = "# Found by `python -m training.generate`; not written by hand.\n"
_PINNED = re.compile(r"perm_default\(\w+, rank\(\w+\)\) == \[\d")
_SIGNS = {"Add": "+", "Sub": "-", "Mul": "*", "MatMul": "@", "FusedMatMul": "@"}


@dataclass(frozen=True)
class Entry:
    """One substitution as written to the library."""

    name: str
    family: str
    doc: str
    text: str
    gain: float


def variants(text: str, saves: bool) -> Iterator[str]:
    """The text, or one per function if it holds for any; cost-saving products also as linear layers."""
    if f"{FUNCTION}(" not in text:
        yield text
    else:
        for function in FUNCTIONS:
            op, _, attrs = function.partition("(")
            names = [name for name in attrs.rstrip(")").split(", ") if name]
            given = ", ".join(f"{name}=f{i}" for i, name in enumerate(names))
            yield re.sub(rf"{FUNCTION}\((\w+)\)", rf"{op}(\1{'; ' + given if given else ''})", text)
    if " MatMul(" in text and saves:
        yield as_linear(text)


def as_linear(text: str) -> str:
    """Turns products into model layers, whose right operand is a weight."""
    weights = {line["ins"].split(", ")[1] for line in _LINE.finditer(text) if line["op"] == "MatMul"}
    inputs = _inputs(text.partition("=>")[0])
    conditions = "".join(f"  rank({name}) == 2\n  is_static({name})\n" for name in sorted(weights & inputs))
    changed = text.replace(" MatMul(", " FusedMatMul(")
    return changed + ("" if "\nwhere\n" in changed else "where\n") + conditions


def entries(state: State, report: Callable[[str, int, int], None]) -> list[Entry]:
    """What ships, sorted by name; each holds on as many instances as the tests require."""
    found: dict[str, Entry] = {}
    shipped = [each for each in state.accepted if ships(each)]
    for number, each in enumerate(shipped):
        report("writing", number, len(shipped))
        of_any_function = f"{FUNCTION}(" in each["text"]
        for i, text in enumerate(variants(each["text"], each["gain"] > 0.0)):
            entry = make_entry(text, each)
            # A rule that holds for one function, treated as an arbitrary one, holds for the others.
            if not holds_widely(entry.text, NUM_SEEDS if i == 0 or not of_any_function else 1):
                continue
            if of_any_function:
                entry = replace(entry, doc=f"{entry.doc}\n# Holds for every elementwise function.")
            found.setdefault(entry.name, entry)
    return sorted(found.values(), key=lambda entry: (entry.family, entry.name))


def ships(accepted: dict[str, Any]) -> bool:
    """Whether it is minimal, and saves somewhere or moves something substantial at almost no cost."""
    before, _, after = accepted["text"].partition("=>")
    if _undoes_itself(after) or _PINNED.search(after):
        return False
    lines = [line["op"] for line in _LINE.finditer(before)]
    if lines.count("Transpose") > 1 and re.search(r"rank\(\w+\) == \d", after):
        return False  # if they compose for one rank, they compose for all
    ops = set(lines)
    return bool(accepted["gain"] > 0.0 or (accepted["gain"] >= -MAX_SHIPPED_LOSS and not ops <= _ARITHMETIC))


def _undoes_itself(replacement: str) -> bool:
    """Whether it subtracts what it added or multiplies by the identity, so that a smaller one exists."""
    lines = {line["outs"]: line for line in _LINE.finditer(replacement)}
    for line in lines.values():
        ins = line["ins"].split(", ")
        if line["op"] == "MatMul" and "eye" in ins:
            return True
        for name in ins:
            made = lines.get(name)
            is_sum = line["op"] == "Sub" and made is not None and made["op"] in ("Add", "Sub")
            if is_sum and made is not None and set(made["ins"].split(", ")) & (set(ins) - {name}):
                return True
    return False


def make_entry(text: str, accepted: dict[str, Any]) -> Entry:
    """An entry with name, family, formula, and `exact` if the result is bitwise equal."""
    ops = {line["op"] for line in _LINE.finditer(text)}
    exact = text.replace(f"substitution {NAME}", f"substitution {NAME} exact", 1)
    is_exact = ops <= _EXACT_OPS and holds(exact, NUM_BINDINGS)
    name = f"gen_{_C.Library(text).hash[:8]}"
    body = (exact if is_exact else text).replace(f"substitution {NAME}", f"substitution {name}", 1)
    return Entry(name, f"generated_{family_of(text)}", formula(text), body, accepted["gain"])


def family_of(text: str) -> str:
    """The family, according to the operators of the pattern."""
    before, _, after = text.partition("=>")
    ops = {line["op"] for line in _LINE.finditer(before)}
    made = {line["op"] for line in _LINE.finditer(after)}
    if ops & {"Conv", "AveragePool"}:
        return "convolution"
    if "Split" in made and ops & {"MatMul", "FusedMatMul"}:
        return "merge"
    if (ops | made) & {"Transpose", "Reshape", "Concat", "Split", "Slice"}:
        return "movement"
    return "algebra"


def formula(text: str) -> str:
    """`a @ b + a @ c = a @ (b + c)`: both sides with intermediates inlined."""
    before, _, rest = text.partition("=>")
    after = rest.partition("where")[0]
    made = "trilu(trilu(constantofshape()))"
    return f"{_expressions(before)} = {_expressions(after)}".replace(made, "identity")


def _expressions(side: str) -> str:
    values: dict[str, str] = {}
    read: set[str] = set()
    for line in _LINE.finditer(side):
        names = [name.strip() for name in line["ins"].split(",") if name.strip()]
        read |= set(names)
        args = [values.get(name, name) for name in names]
        sign = _SIGNS.get(line["op"])
        if sign and len(args) == 2:
            expression = f"({args[0]} {sign} {args[1]})"
        else:
            expression = f"{line['op'].lower()}({', '.join(args)})"
        outs = line["outs"].split(", ")
        for i, name in enumerate(outs):
            values[name] = expression if len(outs) == 1 else f"{expression}[{i}]"
    outputs = [values[name] for name in sorted(values) if name not in read]
    alias = re.findall(r"^  y\d? = (\w+)$", side, re.MULTILINE)
    return ", ".join(
        each.removeprefix("(").removesuffix(")") if each[0] == "(" else each for each in outputs + alias
    )


def _inputs(side: str) -> set[str]:
    defined: set[str] = set()
    read: set[str] = set()
    for line in _LINE.finditer(side):
        read |= {name for name in line["ins"].split(", ") if re.match(r"[a-z]", name)}
        defined |= set(line["outs"].split(", "))
    return read - defined


def write_library(
    state: State, folder: Path, report: Callable[[str, int, int], None] = lambda *_: None
) -> dict[str, int]:
    """Replace the generated files of a folder; returns the number of substitutions per file."""
    by_family: dict[str, list[Entry]] = {}
    for entry in entries(state, report):
        by_family.setdefault(entry.family, []).append(entry)
    files: dict[str, str] = {}
    for family, all_entries in by_family.items():
        blocks = [f"# {entry.doc}\n{entry.text}" for entry in all_entries]
        for number, part in enumerate(_parts(blocks), start=1):
            head = f"# family: {family}\n{_HEAD}\n"
            files[f"{family}_{number}.txt"] = head + "\n".join(part)
    for path in folder.glob("generated_*.txt"):
        path.unlink()
    counts = {}
    for name, text in sorted(files.items()):
        (folder / name).write_text(text, encoding="utf-8")
        counts[name] = len(re.findall(r"^substitution ", text, re.MULTILINE))
    return counts


def drop_unproved(folder: Path) -> int:
    """Take out of a folder what `torchrlopt substitutions prove --write` has not proved; returns how many."""
    axioms, count = axioms_hash(), 0
    for path in folder.glob("generated_*.txt"):
        library = _C.Library(file_text(path))
        count += drop(path, {name for name in library.names if state_of(library, name, axioms) != "proved"})
    return count


def drop(path: Path, names: Collection[str]) -> int:
    """Remove substitutions from a file, and the file if none is left; returns how many there were."""
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    kept = [block for block in blocks if not set(_NAME.findall(block)) & set(names)]
    if not any(_NAME.search(block) for block in kept):
        path.unlink()
    elif len(kept) < len(blocks):
        path.write_text("\n\n".join(kept).rstrip("\n") + "\n", encoding="utf-8")
    return len(blocks) - len(kept)


def _parts(blocks: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    lines = 3
    for block in blocks:
        size = block.count("\n") + 1
        if part and lines + size > MAX_LINES:
            yield part
            part, lines = [], 3
        part.append(block)
        lines += size
    if part:
        yield part
