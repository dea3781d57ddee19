"""Parses the canonical text of one substitution, as printed by the core, for the prover."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

_TOKEN = re.compile(r'"[^"]*"|&&|\|\||!=|!|[A-Za-z_]\w*\*?|.', re.DOTALL)
_WORDS = {"&&": " and ", "||": " or ", "!": " not "}
EACH = "__each"
"""Suffix of variables that have one value per member of the family."""


@dataclass
class Line:
    """`outs = op(ins; attrs, @rest)`; starred names keep their star. `op` is empty for `y = x`.

    Inputs are names, numbers, or None if omitted.
    """

    outs: list[str]
    op: str
    ins: list[str | float | None]
    attrs: dict[str, ast.expr] = field(default_factory=dict)
    rest: str = ""


@dataclass
class Rule:
    """One substitution."""

    name: str
    pattern: list[Line]
    replacement: list[Line]
    conditions: list[ast.expr]

    @property
    def outputs(self) -> list[str]:
        """Pattern tensors that the replacement defines, in its order."""
        old = {out for line in self.pattern for out in line.outs}
        return [out for line in self.replacement for out in line.outs if out in old]


def parse_rule(text: str) -> Rule:
    """Parses the output of `Library.text`."""
    lines = text.splitlines()
    rule = Rule(lines[0].split()[1], [], [], [])
    target = rule.pattern
    in_conditions = False
    for line in lines[1:]:
        if line == "=>":
            target = rule.replacement
        elif line == "where":
            in_conditions = True
        elif line.startswith("proof "):
            break
        elif in_conditions:
            rule.conditions.append(parse_expression(line))
        else:
            target.append(_parse_line(line))
    return rule


def parse_expression(text: str) -> ast.expr:
    """Parses an expression as Python; names get a leading underscore, so that none is a keyword."""
    parts = []
    for token in _TOKEN.findall(text.strip()):
        if token in _WORDS:
            parts.append(_WORDS[token])
        elif re.match(r"[A-Za-z_]\w*\*$", token):
            parts.append(f"_{token[:-1]}{EACH}")
        elif re.match(r"[A-Za-z_]", token) and not (parts and re.match(r"[\d.]", parts[-1][-1:])):
            parts.append(f"_{token}")
        else:
            parts.append(token)
    return ast.parse("".join(parts).strip(), mode="eval").body


def _parse_line(text: str) -> Line:
    left, right = text.strip().split(" = ", 1)
    outs = left.split(", ")
    call = re.match(r"([A-Z]\w*)\((.*)\)$", right)
    if call is None:
        return Line(outs, "", [right])
    op, inside = call.groups()
    inputs, _, attrs = _cut(inside, ";")
    line = Line(outs, op, [_parse_input(each) for each in _pieces(inputs)])
    for each in _pieces(attrs):
        if each.startswith("@"):
            line.rest = each[1:]
        else:
            name, _, value = each.partition("=")
            line.attrs[name] = parse_expression(value)
    return line


def _parse_input(text: str) -> str | float | None:
    if text == "_":
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _cut(text: str, mark: str) -> tuple[str, str, str]:
    """Splits at the first mark outside strings."""
    is_text = False
    for position, letter in enumerate(text):
        is_text ^= letter == '"'
        if letter == mark and not is_text:
            return text[:position], mark, text[position + 1 :]
    return text, "", ""


def _pieces(text: str) -> list[str]:
    """Splits at commas outside brackets and strings."""
    pieces, depth, is_text, start = [], 0, False, 0
    for position, letter in enumerate(text):
        is_text ^= letter == '"'
        depth += letter in "([" and not is_text
        depth -= letter in ")]" and not is_text
        if letter == "," and depth == 0 and not is_text:
            pieces.append(text[start:position])
            start = position + 1
    return [each.strip() for each in [*pieces, text[start:]] if each.strip()]
