"""The components of each row as a picture, and the recorded costs of composing them and of PyG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.config import ROWS, Config
from training.papers.components.component import said
from training.papers.components.picture import draw
from training.papers.components.rows import composition
from training.papers.experiment import Data, Shown, frame, recorded

_LONG = ("observation", "legal", "imagined", "episodes", "replay")  # their spaces are too long for the table


def _listed(values: Mapping[str, Any]) -> str:
    return "; ".join(name if name in _LONG else f"{name} {said(space)}" for name, space in values.items())


def _shown(data: Data) -> Shown:
    parts = {row: composition(Config.of_row(row)) for row in ROWS}
    spaces = [(spec.name, _listed(spec.takes), _listed(spec.gives)) for spec in parts["wm"].specs]
    ms = data.main.set_index("what")["milliseconds"]
    return {"": draw(list(parts.values()))}, {
        "spaces": frame(spaces, "component", "takes", "gives"),
        "costs": data.main.rename(columns={"milliseconds": "ms"}),
        "wiring": float(ms["fitting the wires"].max()),
        "pyg": f"{ms['an update, PyG'] / ms['an update, plain torch'] - 1:+.1%}",
    }


COMPONENTS = recorded(
    "Components, and how the rows are composed of them",
    "After the slides on RLgraph (components, build overhead)",
    _shown,
    "components",
)
