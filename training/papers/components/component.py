"""Components: specs of inputs and outputs, and compositions of specs that fit together.

A space is the dtype and shape of an array, or named spaces, or a list of spaces of one kind. A letter in a
shape stands for any size, which is the same wherever the letter occurs in one call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torchrlopt.errors import RlOptError


class ShapeError(RlOptError):
    """Two specs are incompatible."""


@dataclasses.dataclass(frozen=True)
class Array:
    """An array or tensor.

    Attributes:
        shape: sizes; a letter, optionally with a number added ("T+1"), stands for any size.
        dtype: name of the dtype.
    """

    shape: tuple[int | str, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.shape))}] {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Many:
    """A list whose entries share one space; letters stand for separate sizes in each entry."""

    of: Space

    def __str__(self) -> str:
        return f"list of {said(self.of)}"


Space = Array | Many | Mapping[str, "Space"]


def said(space: Space) -> str:
    """Format a space as text."""
    if isinstance(space, Array | Many):
        return str(space)
    return "{" + ", ".join(f"{name}: {said(each)}" for name, each in space.items()) + "}"


@dataclasses.dataclass(frozen=True)
class Spec:
    """Specification of a component that is not built yet.

    Attributes:
        name: of the component.
        takes: space of each input by name; names are the wires of a `Composition`.
        gives: space of each output by name.
        build: creates the component without any other component.
    """

    name: str
    takes: Mapping[str, Space]
    gives: Mapping[str, Space]
    build: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Composition:
    """Components and the wires between them: a value goes from its producer to all consumers.

    Attributes:
        row: the composed row.
        specs: of the components.
        outside: values that no component gives: from the environment, and keys.

    Raises:
        ShapeError: an input of a component has no producer, or one with another space.
    """

    row: str
    specs: tuple[Spec, ...]
    outside: Mapping[str, Space]

    def __post_init__(self) -> None:
        givers = self._givers()
        for spec in self.specs:
            for name, space in spec.takes.items():
                giver, given = givers.get(name, ("any component", {}))
                if given != space:
                    what = (
                        f"the component {spec.name} takes another {name} than {giver or 'the outside'} gives"
                    )
                    raise ShapeError(what, where=f"the row {self.row}", expected=said(space), got=said(given))

    def __getitem__(self, name: str) -> Spec:
        """The spec of a component."""
        return next(spec for spec in self.specs if spec.name == name)

    def wires(self) -> list[tuple[str, str, str]]:
        """(producer, value, consumer) of each wire; the producer "" is outside."""
        givers = self._givers()
        return [(givers[name][0], name, spec.name) for spec in self.specs for name in spec.takes]

    def _givers(self) -> dict[str, tuple[str, Space]]:
        own = {name: (spec.name, space) for spec in self.specs for name, space in spec.gives.items()}
        return {**{name: ("", space) for name, space in self.outside.items()}, **own}
