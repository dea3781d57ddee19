"""Embeds substitutions by their content: pattern and replacement as one small graph.

So a substitution that was not in training gets an embedding like any other. The input is the library's
canonical text (`_C.Library.text`); only operators and wiring are read, the core interprets the rest.
"""

from __future__ import annotations

import dataclasses
import math
import re

import torch
from torch import Tensor, nn

from torchrlopt import _C
from torchrlopt.agent.networks.encoder import mlp, segment_sum
from torchrlopt.agent.observation import Schema
from torchrlopt.errors import AgentError
from training.networks.ragged import segment_mean

_LINE = re.compile(r"^\s*(?P<outs>[^=]*?)\s*=\s*(?P<op>\w+)\((?P<ins>[^;)]*)(?:;(?P<attrs>.*))?\)$")
_ALIAS = re.compile(r"^\s*(?P<outs>[^=]*?)\s*=\s*(?P<ins>[\w*]+)$")
_TENSOR = re.compile(r"[A-Za-z]\w*\*?")

#: Features of a node: an operator of the pattern or of the replacement, or a tensor that both sides read.
NODE_FEATURES = ("is_pattern", "is_replacement", "is_tensor", "is_family", "log_inputs", "log_attributes",
                 "has_literal", "is_output")  # fmt: skip
#: Features of a whole substitution.
RULE_FEATURES = ("is_exact", "has_family", "log_conditions", "log_pattern", "log_replacement", "log_ratio")


@dataclasses.dataclass(frozen=True)
class SubstitutionGraphs:
    """All substitutions of a library, batched.

    Attributes:
        ops: [N], rows of the schema's vocabulary; tensors use "Input".
        nodes: [N, len(NODE_FEATURES)], node features.
        edge_index: [2, E], producer and reader of each edge.
        rule: [N], substitution of each node.
        rules: [S, len(RULE_FEATURES)], substitution features.
    """

    ops: Tensor
    nodes: Tensor
    edge_index: Tensor
    rule: Tensor
    rules: Tensor

    @property
    def num_substitutions(self) -> int:
        """S."""
        return len(self.rules)

    @classmethod
    def of(cls, library: _C.Library, schema: Schema) -> SubstitutionGraphs:
        """Parse a library.

        Raises:
            AgentError: a line of a substitution cannot be parsed.
        """
        reader = _Reader()
        for name in library.names:
            reader.read(name, library.text(name), library.is_exact(name))
        edges = torch.tensor(reader.edges, dtype=torch.int64).reshape(-1, 2).T.contiguous()
        return cls(
            schema.rows_of_ops(reader.ops),
            torch.tensor(reader.nodes, dtype=torch.float32).reshape(-1, len(NODE_FEATURES)),
            edges,
            torch.tensor(reader.rule, dtype=torch.int64),
            torch.tensor(reader.rules, dtype=torch.float32).reshape(-1, len(RULE_FEATURES)),
        )


class _Reader:
    """Collects the rows of all substitutions."""

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.nodes: list[list[float]] = []
        self.edges: list[tuple[int, int]] = []
        self.rule: list[int] = []
        self.rules: list[list[float]] = []

    def read(self, name: str, text: str, is_exact: bool) -> None:
        pattern, replacement, conditions = _sections(text)
        shared: dict[str, int] = {}  # tensors that the replacement may read
        rule = len(self.rules)
        before, after = ({out for line in lines for out in line[0]} for lines in (pattern, replacement))
        outputs = before & after
        for side, lines in enumerate((pattern, replacement)):
            defined: dict[str, int] = {}
            for outs, op, ins, attrs in lines:
                names = _TENSOR.findall(ins)
                features = [
                    float(side == 0), float(side == 1), 0.0, float(any("*" in out for out in outs)),
                    math.log2(1 + len(names)), math.log2(1 + (attrs.count("=") if attrs else 0)),
                    float(bool(re.search(r"\d", re.sub(r"\w*[A-Za-z]\w*", "", ins)))),
                    float(bool(set(outs) & outputs)),
                ]  # fmt: skip
                row = self._add(rule, op, features)
                for each in names:
                    producer = defined.get(each)
                    if producer is None:
                        if each not in shared:
                            shared[each] = self._add(
                                rule, "Input", [0.0, 0.0, 1.0, float("*" in each), 0.0, 0.0, 0.0, 0.0]
                            )
                        producer = shared[each]
                    self.edges.append((producer, row))
                for out in outs:
                    defined[out] = row
            if side == 0:  # the replacement may read values of the pattern
                shared.update({out: row for out, row in defined.items() if out not in outputs})
        if not pattern:
            raise AgentError("a substitution has no pattern", where=f"substitution {name}")
        counts = len(pattern), len(replacement)
        self.rules.append([
            float(is_exact), float("*" in text), math.log2(1 + conditions),
            math.log2(1 + counts[0]), math.log2(1 + counts[1]), math.log2((1 + counts[1]) / (1 + counts[0])),
        ])  # fmt: skip

    def _add(self, rule: int, op: str, features: list[float]) -> int:
        self.ops.append(op)
        self.nodes.append(features)
        self.rule.append(rule)
        return len(self.ops) - 1


_Parsed = tuple[list[str], str, str, str | None]


def _sections(text: str) -> tuple[list[_Parsed], list[_Parsed], int]:
    """Return the lines of pattern and replacement, and the number of conditions."""
    sides: tuple[list[_Parsed], list[_Parsed]] = ([], [])
    section = conditions = 0
    for line in text.splitlines()[1:]:
        if line.strip() in ("=>", "where"):
            section = 1 if line.strip() == "=>" else 2
        elif line.startswith("proof") or not line.strip():
            continue
        elif section == 2:
            conditions += 1
        else:
            found = _LINE.match(line) or _ALIAS.match(line)
            if found is None:
                raise AgentError("a line of a substitution cannot be read", got=line.strip())
            parts = found.groupdict()
            outs = _TENSOR.findall(parts["outs"])
            sides[section].append((outs, parts.get("op", "Identity"), parts["ins"], parts.get("attrs")))
    return *sides, conditions


class SubstitutionEncoder(nn.Module):
    """Rounds of message passing, then separate sums over the pattern and the replacement.

    Args:
        schema: the vocabulary of operators.
        width: width of node embeddings.
        out_width: D, width of the result.
    """

    def __init__(self, schema: Schema, width: int = 32, out_width: int = 32, rounds: int = 2) -> None:
        super().__init__()
        self.width = out_width
        self.embedding = nn.Embedding(len(schema.ops) + 1, width)
        self.linear = nn.Linear(len(NODE_FEATURES), width)
        self.updates = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(rounds))
        self.readout = mlp(2 * width + len(RULE_FEATURES), 2 * width, out_width)

    def forward(self, graphs: SubstitutionGraphs) -> Tensor:
        """Return the embeddings, [S, D]."""
        nodes = torch.relu(self.embedding(graphs.ops) + self.linear(graphs.nodes))
        source, target = graphs.edge_index[0], graphs.edge_index[1]
        for update in self.updates:
            heard = [
                nodes,
                segment_mean(nodes[source], target, len(nodes)),
                segment_mean(nodes[target], source, len(nodes)),
            ]
            nodes = nodes + torch.relu(update(torch.cat(heard, dim=-1)))
        sides = [
            segment_sum(nodes * graphs.nodes[:, side : side + 1], graphs.rule, graphs.num_substitutions)
            for side in range(2)
        ]
        embeddings: Tensor = self.readout(torch.cat([*sides, graphs.rules], dim=-1))
        return embeddings
