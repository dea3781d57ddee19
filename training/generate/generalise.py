"""Generalises a pair of graphs with fixed shapes to substitutions with variable shapes and attributes.

`generalisations` writes the pair in the library's syntax in several ways, the most general first: attributes
of the pattern become variables, those of the replacement are copied or computed from them, and properties
of the instance (equal axes, equal shapes, parts of equal size) become conditions. Exact evaluation decides
which of them hold: the generator takes the first that does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from training.generate.pairs import Input, OpLine, Pair, Shape, world_inputs

ELEMENTWISE = ("Add", "Sub", "Mul")
FUNCTION = "Tanh"  # stands for any elementwise function
NAME = "candidate"


@dataclass(frozen=True)
class Mode:
    """How much of the instance is kept."""

    axes: str = "free"  # free: any, with the instance's relations; end, start: counted from there
    shapes: str = "any"  # any; same: the operands of elementwise operators have the same shape
    ranks: str = "any"  # any; pinned: as in the instance
    transposes: str = "same"  # same: one permutation; inverse: they cancel
    convs: str = "any"  # any; ungrouped: group 1; unit: strides and dilations 1 as well
    keep: str = "any"  # any; kept: reductions keep their axes


@dataclass
class _Writer:
    """Writes one pair in one mode."""

    pair: Pair
    mode: Mode
    conditions: list[str] = field(default_factory=list)
    axes: list[tuple[int, int, str, str]] = field(default_factory=list)  # value, rank, variable, tensor
    perms: list[tuple[tuple[int, ...], str, str]] = field(default_factory=list)  # value, variable, tensor
    known: list[tuple[OpLine, str]] = field(default_factory=list)  # attributes and their text in the pattern
    shapes: dict[str, Shape] = field(default_factory=dict)  # of the pattern's tensors
    sizes: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    count: int = 0

    def text(self) -> str | None:
        """The substitution; None if the replacement cannot be written."""
        before, after = self.pair.before.lines("t"), self.pair.after.lines("u")
        inputs = {each.name: each for each in world_inputs(self.pair.before.world)}
        pattern = [self._pattern_line(line, inputs) for line in before]
        replacement: list[str] = []
        self._relate_inputs(before, after, inputs)
        for line in after:
            attrs = self._replacement_attrs(line)
            if attrs is None:
                return None
            replacement += self._constants(line, inputs)
            replacement.append(_line(line, inputs, attrs))
        if not after:
            name = world_inputs(self.pair.after.world)[self.pair.after.outputs[0]].name
            replacement = [f"y = {name}"]
        lines = [f"substitution {NAME}", *(f"  {line}" for line in pattern), "=>"]
        lines += [f"  {line}" for line in dict.fromkeys(replacement)]
        if self.conditions:
            lines += ["where", *(f"  {each}" for each in dict.fromkeys(self.conditions))]
        return "\n".join(lines) + "\n"

    # ---- the pattern

    def _pattern_line(self, line: OpLine, inputs: dict[str, Input]) -> str:
        for name, shape in zip(line.ins + line.outs, line.in_shapes + line.out_shapes, strict=True):
            self.shapes[name] = shape
        attrs = self._known_attrs(line)
        inverse = line.op == "Transpose" and self.mode.transposes == "inverse"
        if attrs is None or inverse or (line.op in ("Concat", "Split") and self.mode.axes != "start"):
            attrs = self._new_attrs(line, inputs)
            self.known.append((line, attrs))
        return _line(line, inputs, attrs)

    def _known_attrs(self, line: OpLine) -> str | None:
        """Attributes of a pattern line that has the same operator and attributes."""
        return next(
            (text for each, text in self.known if each.op == line.op and each.attrs == line.attrs), None
        )

    def _new_attrs(self, line: OpLine, inputs: dict[str, Input]) -> str:
        self.count += 1
        n, tensor = self.count, line.ins[0]
        if inputs.get(tensor) is not None and inputs[tensor].number is not None:
            tensor = line.outs[0]
        rank = len(line.in_shapes[0])
        if line.op == "Concat":
            self._bind_axis(int(line.attrs["axis"]), rank, f"axis{n}", line.outs[0])
            parts = tuple(shape[int(line.attrs["axis"])] for shape in line.in_shapes)
            self._link(parts, "[" + ", ".join(f"dim({name}, axis{n})" for name in line.ins) + "]", True)
            return f"axis=axis{n}"
        if line.op == "Split":
            self._bind_axis(int(line.attrs["axis"]), rank, f"axis{n}", tensor)
            self._link(tuple(line.attrs["sizes"]), f"sizes{n}", False)
            return f"axis=axis{n}, sizes=sizes{n}"
        if line.op == "Slice":
            self._bind_axes(list(line.attrs["axes"]), rank, f"axes{n}", tensor)
            for parts, known in self.sizes:
                if known.startswith("[") and parts[0] == line.attrs["ends"][0]:
                    first = known[1:].split("), ")[0]
                    self.conditions += [f"from{n} == [0]", f"to{n} == [{first})]", f"all_equal(step{n}, 1)"]
            return f"axes=axes{n}, starts=from{n}, ends=to{n}, steps=step{n}"
        if line.op == "ReduceSum":
            self._bind_axes(list(line.attrs["axes"]), rank, f"axes{n}", tensor)
            return f"axes=axes{n}, keepdims=" + ("1" if self.mode.keep == "kept" else f"keep{n}")
        if line.op == "Transpose":
            self._bind_perm(tuple(line.attrs["perm"]), f"perm{n}", tensor)
            return f"perm=perm{n}"
        if line.op == "Reshape":
            return f"shape=shape{n}"
        if line.op == "Pad":
            if self.mode.convs == "unit":
                self.conditions.append(f"pads{n} == {list(line.attrs['pads'])}")
                return f"pads=pads{n}"
            self.conditions += [f"rank({tensor}) == 4", f"all_at_least(pads{n}, 0)"]
            self.conditions += [f"pads{n}[{i}] == 0" for i in (0, 1, 4, 5)]
            return f"pads=pads{n}"
        if line.op == "Conv":
            return self._bind_conv(line, n)
        if line.op == "AveragePool":
            return f"@pool{n}"
        return ""

    def _bind_conv(self, line: OpLine, n: int) -> str:
        if self.mode.convs == "any":
            return f"@conv{n}"
        if self.mode.convs == "ungrouped":
            return f"group=1, @conv{n}"
        self.conditions += [
            f"all_equal(strides{n}, 1)",
            f"all_equal(dilations{n}, 1)",
            f"rank({line.ins[0]}) == 4",
        ]
        if all(size == 1 for size in line.in_shapes[1][2:]):
            kernel = line.ins[1]
            self.conditions += [f"dim({kernel}, 2) == 1 && dim({kernel}, 3) == 1", f"all_equal(pads{n}, 0)"]
        return f"strides=strides{n}, pads=pads{n}, dilations=dilations{n}, group=group{n}"

    def _bind_axis(self, value: int, rank: int, name: str, tensor: str) -> None:
        self._relate(value, rank, f"norm_axis({name}, rank({tensor}))", tensor)
        self.axes.append((value, rank, name, tensor))

    def _bind_axes(self, values: list[int], rank: int, name: str, tensor: str) -> None:
        if len(values) == 1:
            self.conditions.append(f"len({name}) == 1")
            self._relate(values[0], rank, f"norm_axis({name}[0], rank({tensor}))", tensor)
            self.axes.append((values[0], rank, f"{name}[0]", tensor))
        else:
            wanted = str(values)
            self.conditions.append(f"norm_axes({name}, rank({tensor})) == {wanted}")

    def _relate(self, value: int, rank: int, expression: str, tensor: str) -> None:
        """Adds the instance's conditions on an axis: its position, or its relation to other axes."""
        if self.mode.axes == "end":
            self.conditions.append(f"{expression} == rank({tensor}) - {rank - value}")
        elif self.mode.axes == "start":
            self.conditions.append(f"{expression} == {value}")
        else:
            for other, other_rank, name, of in self.axes:
                if other_rank == rank:
                    sign = "==" if other == value else "!="
                    self.conditions.append(f"{expression} {sign} norm_axis({name}, rank({of}))")

    def _bind_perm(self, value: tuple[int, ...], name: str, tensor: str) -> None:
        mine = f"perm_default({name}, rank({tensor}))"
        rank = len(value)
        if self.mode.transposes == "inverse":
            for other, other_name, of in self.perms:
                if tuple(other[i] for i in value) == tuple(range(rank)):
                    first = f"perm_default({other_name}, rank({of}))"
                    self.conditions.append(f"compose({first}, {mine}) == range(rank({tensor}))")
        if self.mode.axes == "end" and value == (*range(rank - 2), rank - 1, rank - 2):
            swap = f"[rank({tensor}) - 1, rank({tensor}) - 2]"
            self.conditions.append(f"{mine} == concat(range(rank({tensor}) - 2), {swap})")
            self.conditions.append(f"rank({tensor}) >= 2")
        elif self.mode.axes != "free":
            self.conditions.append(f"{mine} == {list(value)}")
        self.perms.append((value, name, tensor))

    def _link(self, parts: tuple[int, ...], expression: str, is_concat: bool) -> None:
        """Keeps parts equal that are equal in the instance, unless both are concatenations."""
        for other, known in self.sizes:
            if other == parts and not (is_concat and known.startswith("[")):
                self.conditions.append(f"{known} == {expression}")
        self.sizes.append((parts, expression))

    def _relate_inputs(
        self, before: Sequence[OpLine], after: Sequence[OpLine], inputs: dict[str, Input]
    ) -> None:
        data = [each for each in inputs.values() if not each.is_constant and each.name in self.shapes]
        for line in (*before, *after):
            if line.op == "MatMul" and self.mode.ranks == "any":
                self.conditions += [f"rank({name}) >= 2" for name in line.ins if name in self.shapes]
            if line.op in ELEMENTWISE and self.mode.shapes == "same":
                x, y = line.ins
                is_known = x in self.shapes and y in self.shapes and line.in_shapes[0] == line.in_shapes[1]
                if is_known and x != y and not _is_number(inputs, x) and not _is_number(inputs, y):
                    self.conditions.append(f"same_shape({x}, {y})")
        for each in data:
            if each.shape == (1,):
                self.conditions += [f"size({each.name}) == 1", f"rank({each.name}) <= 1"]
            elif self.mode.ranks == "pinned":
                self.conditions.append(f"rank({each.name}) == {len(each.shape)}")

    # ---- the replacement

    def _replacement_attrs(self, line: OpLine) -> str | None:
        copied = self._known_attrs(line)
        if copied is not None and line.op not in ("Concat", "Split", "Reshape"):
            return copied
        rank = len(line.in_shapes[0])
        if line.op == "Concat":
            return f"axis={self._axis(int(line.attrs['axis']), rank)}"
        if line.op == "Split":
            axis = self._axis(int(line.attrs["axis"]), rank)
            sizes = self._part_sizes(line, axis)
            return None if sizes is None else f"axis={axis}, sizes={sizes}"
        if line.op == "Slice":
            axis = self._axis(line.attrs["axes"][0], rank)
            for each, attrs in self.known:
                if each.op == "Slice" and each.attrs["ends"] == line.attrs["ends"]:
                    return f"axes=[{axis}], " + attrs.split(", ", 1)[1]
            return self._slice_of_parts(line, axis)
        if line.op == "ReduceSum":
            axes = [self._axis(axis, rank) for axis in line.attrs["axes"]]
            keep = next((a.rsplit("=", 1)[1] for each, a in self.known if each.op == "ReduceSum"), "1")
            return f"axes=[{', '.join(axes)}], keepdims={keep}"
        if line.op == "Transpose":
            return self._perm(line, rank)
        if line.op == "Reshape":
            return self._shape(line)
        if line.op == "Pad":
            return f"pads={list(line.attrs['pads'])}"
        if line.op == "Conv":
            return self._conv(line)
        if line.op == "AveragePool":
            return None
        return ""

    def _axis(self, value: int, rank: int) -> str:
        if self.mode.axes == "end":
            return str(value - rank)
        if self.mode.axes == "start":
            return str(value)
        for other, other_rank, name, _ in self.axes:
            if other == value and other_rank == rank and not self._is_moved(rank):
                return name
        for perm, name, tensor in self.perms:
            mine = f"perm_default({name}, rank({tensor}))"
            for other, other_rank, axis, of in self.axes:
                if len(perm) != rank or other_rank != rank:
                    continue
                if perm[other] == value:
                    return f"{mine}[norm_axis({axis}, rank({of}))]"
                if perm.index(other) == value:
                    return f"inverse({mine})[norm_axis({axis}, rank({of}))]"
        for other, other_rank, name, _ in self.axes:
            if other == value and other_rank == rank:
                return name
        return str(value - rank)

    def _is_moved(self, rank: int) -> bool:
        return any(len(perm) == rank for perm, _, _ in self.perms)

    def _part_sizes(self, line: OpLine, axis: str) -> str | None:
        if all(name in self.shapes for name in line.outs):
            return "[" + ", ".join(f"dim({name}, {axis})" for name in line.outs) + "]"
        wanted = tuple(line.attrs["sizes"])
        return next((expression for parts, expression in self.sizes if parts == wanted), None)

    def _slice_of_parts(self, line: OpLine, axis: str) -> str | None:
        for parts, expression in self.sizes:
            if parts[0] == line.attrs["ends"][0]:
                first = (
                    f"{expression}[0]"
                    if not expression.startswith("[")
                    else expression[1:].split("), ")[0] + ")"
                )
                return f"axes=[{axis}], starts=[0], ends=[{first}]"
        return None

    def _perm(self, line: OpLine, rank: int) -> str | None:
        value = tuple(line.attrs["perm"])
        for perm, name, tensor in self.perms:
            if len(perm) == rank and tuple(perm.index(i) for i in range(rank)) == value:
                return f"perm=inverse(perm_default({name}, rank({tensor})))"
        for (p, name, of), (q, second, tensor) in itertools.product(self.perms, self.perms):
            if len(p) == len(q) == rank and tuple(p[i] for i in q) == value:
                first = f"perm_default({name}, rank({of}))"
                return f"perm=compose({first}, perm_default({second}, rank({tensor})))"
        return f"perm={list(value)}" if self.mode.ranks == "pinned" else None

    def _shape(self, line: OpLine) -> str | None:
        if line.outs[0] in self.shapes:
            return f"shape=shape({line.outs[0]})"
        same = [name for name, shape in self.shapes.items() if shape == line.out_shapes[0]]
        return f"shape=shape({same[-1]})" if same else None

    def _conv(self, line: OpLine) -> str | None:
        """Pads enlarged with the kernel; everything else as in the pattern's convolution."""
        if self.mode.convs != "unit":
            return None
        for each, attrs in self.known:
            if each.op != "Conv" or each.attrs["strides"] != line.attrs["strides"]:
                continue
            number = attrs.split(",", 1)[0].removeprefix("strides=strides")
            grown = [new - old for new, old in zip(line.attrs["pads"], each.attrs["pads"], strict=True)]
            pads = f"zip_add(default(pads{number}, 0, 4), {grown})"
            return f"strides=strides{number}, pads={pads}, dilations=dilations{number}, group=group{number}"
        return None

    def _constants(self, line: OpLine, inputs: dict[str, Input]) -> list[str]:
        """Lines that create matrices which only occur in replacements."""
        made = []
        for name, shape in zip(line.ins, line.in_shapes, strict=True):
            constant = inputs.get(name)
            if constant is None or not constant.is_constant or constant.number is not None:
                continue
            if len(shape) != 2:
                return ["unwritable"]
            # As wide as the last axis of the pattern's matrix operand.
            of = next(n for n, s in self.shapes.items() if len(s) == 2 and not _is_number(inputs, n))
            size = f"dim({of}, -1)"
            made += [
                f"full = ConstantOfShape(; shape=[{size}, {size}], value=1.0, dtype=dtype({of}))",
                "upper = Trilu(full; upper=1)",
                f"{name} = Trilu(upper; upper=0)",
            ]
        return made


def _is_number(inputs: dict[str, Input], name: str) -> bool:
    return name in inputs and inputs[name].number is not None


def _line(line: OpLine, inputs: dict[str, Input], attrs: str) -> str:
    ins = ", ".join(str(inputs[name].number) if _is_number(inputs, name) else name for name in line.ins)
    return f"{', '.join(line.outs)} = {line.op}({ins}{'; ' + attrs if attrs else ''})"


#: How axes are counted: images from the front, products from the end, others by whatever the text allows.
_AXES = {"window": ("free", "start"), "product": ("free", "end"), "other": ("free", "end", "start")}
_WINDOWED = {"Conv", "AveragePool", "Pad"}


def modes(pair: Pair) -> Iterator[Mode]:
    """The distinct modes for a pair, the most general first."""
    lines = [*pair.before.lines("t"), *pair.after.lines("u")]
    ops = {line.op for line in lines}
    has_axes = bool(ops & {"Concat", "Split", "Slice", "ReduceSum", "Transpose"})
    # Tensor parts and broadcasting do not mix: an empty part has another width than one that is read.
    has_parts = bool(ops & {"Concat", "Split", "Slice", "ReduceSum", "Pad"})
    kinds = ("same",) if has_parts else ("any", "same")
    choices = [
        ("any", "kept") if "ReduceSum" in ops else ("any",),
        ("any", "pinned"),
        _AXES["window" if ops & _WINDOWED else "product" if "MatMul" in ops else "other"]
        if has_axes
        else ("free",),
        ("any", "ungrouped", "unit") if "Conv" in ops else ("any",),
        kinds if ops & set(ELEMENTWISE) else ("any",),
        ("same", "inverse") if "Transpose" in ops else ("same",),
    ]
    positions = itertools.product(*(range(len(each)) for each in choices))
    for position in sorted(positions, key=lambda each: (sum(each), each)):
        keep, ranks, axes, convs, shapes, transposes = (
            each[i] for each, i in zip(choices, position, strict=True)
        )
        yield Mode(axes, shapes, ranks, transposes, convs, keep)


def generalisations(pair: Pair) -> Iterator[str]:
    """Texts of the pair as a substitution named `candidate`, the most general first, without duplicates."""
    seen = set()
    pair = pair.in_order()
    for mode in modes(pair):
        text = _Writer(pair, mode).text()
        if text is not None and "unwritable" not in text and text not in seen:
            seen.add(text)
            yield text
