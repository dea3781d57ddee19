"""Components: a spec of inputs and outputs, from which a component is built and against which it is checked.

A space is the dtype and shape of an array, or named spaces, or a list of spaces of one kind. A letter in a
shape stands for any size, which must be the same wherever the letter occurs in one call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchrlopt.errors import RlOptError


class ShapeError(RlOptError):
    """An input or output of a component does not match its spec, or two specs are incompatible."""


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
    """A list whose entries share one space; letters are bound separately in each entry."""

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
        run: maps the built component and its inputs by name to its outputs.
    """

    name: str
    takes: Mapping[str, Space]
    gives: Mapping[str, Space]
    build: Callable[[], Any]
    run: Callable[..., Mapping[str, Any]]


class Component:
    """A component built on its own; all inputs and outputs are checked.

    Args:
        spec: of the component.

    Attributes:
        built: the result of the spec's `build`.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.built = spec.build()

    def __call__(self, **values: Any) -> Mapping[str, Any]:
        """Run the component and return its outputs.

        Raises:
            ShapeError: a value does not match the spec.
        """
        sizes: dict[str, int] = {}
        check(self.spec.name, "takes", self.spec.takes, values, sizes)
        found = self.spec.run(self.built, **values)
        check(self.spec.name, "gives", self.spec.gives, found, sizes)
        return found


def check(component: str, where: str, space: Space, value: Any, sizes: dict[str, int]) -> None:
    """Check a value against its space.

    Args:
        component: name, for the error message.
        where: which value it is, for the error message.
        space: the expected space.
        value: an array; a mapping or an object with fields; a list.
        sizes: sizes bound to letters so far; new ones are added.

    Raises:
        ShapeError: it does not match.
    """
    got: Any = type(value).__name__
    if isinstance(space, Mapping):
        for name, each in space.items():
            part = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
            check(component, f"{where} {name}", each, part, sizes)
        return
    if isinstance(space, Many) and isinstance(value, Sequence):
        for entry in value:
            check(component, f"{where}, an entry:", space.of, entry, {})
        return
    if isinstance(space, Array) and hasattr(value, "shape") and hasattr(value, "dtype"):
        got = Array(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        is_alike = got.dtype == space.dtype and len(got.shape) == len(space.shape)
        if is_alike and all(
            _fits(wanted, size, sizes) for wanted, size in zip(space.shape, value.shape, strict=True)
        ):
            return
    known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
    raise ShapeError(
        f"the component {component} was used with another shape than its own",
        where=f"what it {where}",
        expected=said(space) + (f" with {known}" if known else ""),
        got="nothing" if value is None else got,
    )


def _fits(wanted: int | str, size: int, sizes: dict[str, int]) -> bool:
    if isinstance(wanted, int):
        return wanted == size
    letter, _, more = wanted.partition("+")
    return sizes.setdefault(letter, size - int(more or 0)) == size - int(more or 0)


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
