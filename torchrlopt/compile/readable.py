"""Readable names for the saved ONNX files: where a node comes from, and what made it.

A captured node is named after its module, such as "encoder.layer.0/addmm"; one made by a substitution also
after that substitution. Weights have their path in the model. A node's description is the user's source line.
"""

from __future__ import annotations

import onnx

from torchrlopt.onnx.subgraphs import nested
from torchrlopt.report import Drawing


class ReadableNames:
    """Renames one graph consistently before and after a plan.

    Args:
        drawing: of the plan.
        prefix: start of the names that the writer has made for new nodes; the key of the node follows.
    """

    def __init__(self, drawing: Drawing, prefix: str) -> None:
        self._drawing = drawing
        self._keys = {each.name: each.key for each in drawing.before.operators if each.name}
        self._keys |= {f"{prefix}{each.key}": each.key for step in drawing.steps for each in step.added}
        self._made_by = {each.key: step.substitution for step in drawing.steps for each in step.added}
        self._values: dict[str, str] = {}
        self._taken: set[str] = set()

    def applied_to(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Rename the model in place and return it. A value renamed once has the same name the next time."""
        for each in (*model.graph.input, *model.graph.initializer):
            label = self._drawing.labels.get(self._keys.get(each.name, -1), each.name)
            self._name(each.name, label)
        for node in model.graph.node:
            for output in filter(None, node.output):
                self._name(output, self._of_node(node.name, output))
            node.doc_string = node.doc_string or self._lines(node.name)
            node.name = self._of_node(node.name, node.name)
        for graph in nested(model.graph):  # inner ones may read values of outer ones
            self._rename(graph)
        return model

    def _of_node(self, node: str, name: str) -> str:
        """Return the name of a node or of its output, prefixed with where it comes from."""
        key = self._keys.get(node)
        if key is None:
            return name
        made_by = self._made_by.get(key)
        module = self._drawing.modules_of(key)
        return f"{f'{module}/' if module else ''}{f'{made_by}.' if made_by else ''}{name}"

    def _lines(self, node: str) -> str:
        """Return the user's source lines behind a node."""
        origins = self._drawing.origins.get(self._keys.get(node, -1), ())
        found = (self._drawing.sources[key] for key in origins if key in self._drawing.sources)
        return "\n".join(dict.fromkeys(f"{each.place}  {each.text}" for each in found if each.file))

    def _name(self, value: str, wanted: str) -> None:
        """Choose a unique name for a value."""
        if value in self._values:
            return
        name, number = wanted, 1
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        self._values[value] = name

    def _rename(self, graph: onnx.GraphProto) -> None:
        """Rename the values of a graph."""
        for each in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            each.name = self._values.get(each.name, each.name)
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [self._values.get(name, name) for name in names]
