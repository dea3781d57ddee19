"""What a component is: a spec of what it takes and gives, from which it is built and by which it is checked.

A space is the type and shape of an array, or named spaces, or a list of spaces of one kind. In a shape a
letter stands for a size that may be any, but is the same wherever the letter stands in one call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchrlopt.errors import RlOptError


class ShapeError(RlOptError):
    """What a component takes or gives is not of the space that its spec says, or two specs do not fit."""


@dataclasses.dataclass(frozen=True)
class Array:
    """An array or tensor.

    Attributes:
        shape: of sizes; a letter, also with a number added ("T+1"), for one that may be any.
        dtype: name of the type.
    """

    shape: tuple[int | str, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.shape))}] {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Many:
    """A list, each entry of one space; letters may mean something else in each."""

    of: Space

    def __str__(self) -> str:
        return f"list of {said(self.of)}"


Space = Array | Many | Mapping[str, "Space"]


def said(space: Space) -> str:
    """A space as text."""
    if isinstance(space, Array | Many):
        return str(space)
    return "{" + ", ".join(f"{name}: {said(each)}" for name, each in space.items()) + "}"


@dataclasses.dataclass(frozen=True)
class Spec:
    """A component before it is built.

    Attributes:
        name: of the component.
        takes: space of each value by its name; names are the wires of a `Composition`.
        gives: likewise.
        build: makes it, without any other component.
        run: what is built, then the values that it takes by name: those that it gives.
    """

    name: str
    takes: Mapping[str, Space]
    gives: Mapping[str, Space]
    build: Callable[[], Any]
    run: Callable[..., Mapping[str, Any]]


class Component:
    """A component that was built by itself; whatever it takes and gives is checked.

    Args:
        spec: of it.

    Attributes:
        built: what the spec builds.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.built = spec.build()

    def __call__(self, **values: Any) -> Mapping[str, Any]:
        """What it gives.

        Raises:
            ShapeError: a value is of another space than the spec says.
        """
        sizes: dict[str, int] = {}
        check(self.spec.name, "takes", self.spec.takes, values, sizes)
        found = self.spec.run(self.built, **values)
        check(self.spec.name, "gives", self.spec.gives, found, sizes)
        return found


def check(component: str, where: str, space: Space, value: Any, sizes: dict[str, int]) -> None:
    """Compare a value with its space.

    Args:
        component: name for the error.
        where: which value it is, for the error.
        space: what it should be.
        value: an array; a mapping or an object with fields; a list.
        sizes: what letters stand for so far; new ones are added.

    Raises:
        ShapeError: it is something else.
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
    """Components and the wires between them: a value goes from who gives it to all who take it.

    Attributes:
        row: that is composed.
        specs: of the components.
        outside: values that no component gives: of the environment, and keys.

    Raises:
        ShapeError: nobody gives what a component takes, or it is of another space.
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
        """(giver, value, taker) of each; the giver "" is outside."""
        givers = self._givers()
        return [(givers[name][0], name, spec.name) for spec in self.specs for name in spec.takes]

    def _givers(self) -> dict[str, tuple[str, Space]]:
        own = {name: (spec.name, space) for spec in self.specs for name, space in spec.gives.items()}
        return {**{name: ("", space) for name, space in self.outside.items()}, **own}
