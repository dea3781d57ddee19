"""Texts for names in a file that Python, a shell, a terminal, a page or a path might interpret."""

from __future__ import annotations

from pathlib import Path

#: Names that other exporters and people write, and that are no names, or taken ones, in Python or here.
ORDINARY = (
    "input.1", "x:0", "x-0", "images/0", "class", "None", "self", "lambda", "0", "1x", "a b", "déjà", "ﬁ",
    "日本", "input_0", "cut_0", "constant_0", "size_0", "x.computed", "x.given", "", " ", "*args", "**kwargs",
    "a.b.c", "__class__",
)  # fmt: skip

#: What is shown, parsed or written by others.
STEERING = (
    "\x1b[31m", "\x1b]52;c;eA==\x07", "[red]", "[/]", "[link=file:///]x", ":boom:", "\u202egnp",
    "a\nb", "a\rb", "a\0b",
    "<script>alert(1)</script>", "</script>", "&lt;", "%s%n%d", "{0.__class__}", "{x!r}", "%(x)s", "../../x",
    "/x", "C:\\x", "..", ".", "~", "$HOME", "x" * 70_000, "9**9**9**9", "(" * 3000, "1/0",
    "N*M+1", "floor(N/2)",
)  # fmt: skip


def payloads(marker: Path) -> tuple[str, ...]:
    """Texts that make a file if they are run by Python or a shell, in quotes, brackets and lines."""
    act = f"open({str(marker)!r},'w').write('1')"
    double = act.replace("'", '"')
    return (
        f"x={act}", f"x: {act}", f"x, y={act}", act, double, f"x)\n{act}\n(", f"x):\n    {act}\n    return (",
        f"');{act}#", f'");{double}#', f"' + str({act}) + '", f'"""\n{double}\n"""', f"'''\n{act}\n'''",
        f"x\n{act}", f"x; {act}", f"[{act} for _ in (1,)]", f"{{{act}}}", f"x.__class__, {act}",
        f"__import__('os').system('touch {marker}')", f"$(touch {marker})", f"`touch {marker}`",
        f"; touch {marker} #",
        f"| touch {marker}", f"!touch {marker}", f"x\\n{act}",
    )  # fmt: skip
