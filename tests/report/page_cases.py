"""Reports with graphs to draw, made from the text of a graph, and a parser that validates pages."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from torchrlopt import _C
from torchrlopt.machine.cost import cost_model
from torchrlopt.options import SearchOptions
from torchrlopt.plan.planning import proof_of
from torchrlopt.plan.record import PlanRecord, priced
from torchrlopt.plan.search import Plan, replay, search
from torchrlopt.report import Report, ReportStep, Source, Status
from torchrlopt.substitutions import load_library

CONVOLUTION = """graph (x: f32[1,8,16,16], %w: f32[8,8,3,3], %s: f32[8], %b: f32[8], %m: f32[8], %v: f32[8]) {
  c = Conv(x, %w; pads=[1,1,1,1])
  n = BatchNormalization(c, %s, %b, %m, %v)
  r = Relu(n)
  t = Transpose(r; perm=[0,2,3,1])
  return t
}"""


def blocks(count: int) -> str:
    """Text of a graph of `count` equal blocks of three operators, one after the other."""
    lines = []
    last = "x"
    for at in range(count):
        lines.append(f"  c{at} = Conv({last}, %w; pads=[1,1,1,1])")
        lines.append(f"  r{at} = Relu(c{at})")
        lines.append(f"  s{at} = Sigmoid(r{at})")
        last = f"s{at}"
    body = "\n".join(lines)
    return f"graph (x: f32[1,8,16,16], %w: f32[8,8,3,3]) {{\n{body}\n  return {last}\n}}"


def tangle(seed: int, count: int) -> str:
    """Text of a random graph of `count` operators; what nobody reads is an output."""
    dice, names, lines = random.Random(seed), ["x"], []
    read: set[str] = set()
    for at in range(count):
        inputs = [dice.choice(names[-8:]) for _ in range(dice.choice((1, 1, 2)))]
        op = dice.choice(("Relu", "Sigmoid", "Tanh", "Neg") if len(inputs) == 1 else ("Add", "Mul"))
        if op == "Relu":
            inputs[0], op = f"{inputs[0]}, %w", "Conv"
        lines.append(f"  v{at} = {op}({', '.join(inputs)}{'; pads=[1,1,1,1]' if op == 'Conv' else ''})")
        read |= {each.partition(",")[0] for each in inputs}
        names.append(f"v{at}")
    outputs = ", ".join(name for name in names[1:] if name not in read)
    body = "\n".join(lines)
    return f"graph (x: f32[1,8,16,16], %w: f32[8,8,3,3]) {{\n{body}\n  return {outputs}\n}}"


def planned(text: str, searcher: str = "greedy") -> tuple[_C.Graph, Plan]:
    """A graph and a plan for it."""
    graph = _C.parse_graph(text)
    return graph, search(graph, load_library(), cost_model("eager"), SearchOptions(searcher=searcher))


def report_of(text: str, sources: Mapping[str, Source] | None = None, searcher: str = "greedy") -> Report:
    """A report as planning leaves it, rewritten and timed."""
    graph, plan = planned(text, searcher)
    library, prices = load_library(), cost_model("eager")
    after = replay(graph, library, plan)
    befores = (plan.cost_before_ms, *plan.costs_ms)
    steps = tuple(
        ReportStep(name, location, cost, before - cost, library.family(name), proof_of(library, name))
        for (name, location), before, cost in zip(plan.steps, befores, plan.costs_ms, strict=False)
    )
    record = PlanRecord(graph, plan.steps, priced(graph, prices), priced(after, prices), sources or {})
    return Report(
        Status("rewritten"),
        searcher=searcher,
        executor="eager",
        steps=steps,
        cost_before_ms=plan.cost_before_ms,
        cost_after_ms=plan.cost_after_ms,
        measured_before_ms=2.0,
        measured_after_ms=1.0,
        measured_spread=0.01,
        numerical_error=1.0,
        num_nodes_before=graph.num_operators,
        num_nodes_after=after.num_operators,
        records=(record,),
    )


@dataclasses.dataclass
class Element:
    """A start tag."""

    name: str
    attributes: dict[str, str | None]


class Page(HTMLParser):
    """A page taken apart; raises ValueError where elements are not closed in the order in which they open.

    Attributes:
        elements: start tags in order.
        scripts: contents of the script elements, in order.
        text: what is shown, without scripts and styles.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        if self._open:
            raise ValueError(f"not closed: {self._open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in ("meta", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            raise ValueError(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts[-1] += data
        elif not self._open or self._open[-1] != "style":
            self.text += data

    def named(self, name: str) -> list[Element]:
        """The elements of one kind."""
        return [each for each in self.elements if each.name == name]

    def boxes(self) -> dict[str, Any]:
        """What the script draws of all graphs: an operator by its key, which begins with its side."""
        count = sum("data-graph" in each.attributes for each in self.elements)
        return {key: box for number in range(count) for key, box in self.data(number)["ops"].items()}

    def data(self, number: int = 0) -> dict[str, Any]:
        """What the script reads of one graph."""
        places = [each.attributes.get("id") for each in self.named("script")]
        found: dict[str, Any] = json.loads(self.scripts[places.index(f"data{number}")])
        return found
