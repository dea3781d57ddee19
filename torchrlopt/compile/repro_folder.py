"""Reproduces a failure without the model's weights: graph as a program, options, plan and traceback."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import platform
import traceback
from collections.abc import Collection, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import fx

from torchrlopt import executor_table
from torchrlopt.compile import fallback
from torchrlopt.compile.fallback import described
from torchrlopt.compile.repro_source import MAKE, Signature, class_text, signatures
from torchrlopt.executors import registry
from torchrlopt.options import Options
from torchrlopt.report import Report
from torchrlopt.storage.repro_folder import Repro, folder_for_all

logger = logging.getLogger("torchrlopt")

_OWN = {"on_error": "raise", "cache": False, "save_dir": None, "repro_dir": None}
"""Options of a reproduction, which override the user's."""
_PLAN = "plan.json"


def repro_of(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    static: Collection[int],
    options: Options,
    report: Report,
    error: Exception,
) -> Repro | None:
    """Make the reproduction of a failure; also written to a folder if the user has named one.

    Never raises: if it cannot be made, the reason is logged, and the result is None.

    The error gets a note that names the folder. No reference to the inputs is kept.
    """
    try:
        repro = _repro(module, inputs, static, options, report, error)
    except Exception as other:  # noqa: BLE001  # the failure that is reported must not be another one
        fallback.log_traceback(other)
        return None
    folder = folder_for_all(options.debug.repro_dir)
    if folder is not None:
        try:
            place = repro.write(folder / repro.name)
            error.add_note(f"what repeats the failure is in {place}")
            logger.warning("rlopt: what repeats a failure is in %s", place)
        except Exception as other:  # noqa: BLE001  # as above
            fallback.log_traceback(other)
    return repro


def _repro(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    static: Collection[int],
    options: Options,
    report: Report,
    error: Exception,
) -> Repro:
    found = signatures(module, inputs, static)
    files = {"graph.txt": module.print_readable(print_output=False, include_stride=True, include_device=True)}
    given = _plan_text(options.plan, report)
    if given is not None:
        files[_PLAN] = given
    chosen = dataclasses.replace(options, plan=None).as_dict() | _OWN
    if given is not None and options.plan is None:
        chosen["executor"] = report.plans[-1]["executor"]
    plain = Options().as_dict()
    settings = {name: value for name, value in chosen.items() if value != plain[name]}
    files["repro.py"] = _program(module, found, settings, given is not None, options.plan is not None, error)
    files["traceback.txt"] = "".join(traceback.format_exception(error))
    about = {
        "failure": {"type": type(error).__name__, "message": described(error)},
        "options": options.as_dict(),
        "versions": _versions(),
        "inputs": [dataclasses.asdict(each) for each in found],
    }
    files["about.json"] = json.dumps(about, indent=1)
    name = hashlib.sha256(f"{files['repro.py']}\n{type(error).__name__}".encode()).hexdigest()[:12]
    return Repro(name, files)


def _plan_text(given: str | None, report: Report) -> str | None:
    """Return the plan that was made before the failure, or the user's own; None if there is none."""
    if given is not None:
        path = Path(given)
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
    return report.plan.text() if report.plans else None


def _versions() -> dict[str, str]:
    executors = {row.name: registry.version(row.name) for row in executor_table.ROWS if row.package}
    ours = {name: metadata.version(name) for name in ("torchrlopt", "torch")}
    system = {"python": platform.python_version(), "system": platform.platform()}
    return system | ours | {name: version for name, version in executors.items() if version}


def _program(
    module: fx.GraphModule,
    inputs: Sequence[Signature],
    settings: dict[str, Any],
    has_plan: bool,
    is_given: bool,
    error: Exception,
) -> str:
    """Return the text of `repro.py`."""
    weights = [each for each in inputs if each.role in ("weight", "buffer")]
    passed = [
        each for each in inputs if each.role == "input" or (each.role == "size" and each.value.isdigit())
    ]
    made = {
        "weight": "self.{0} = torch.nn.Parameter({1}, requires_grad=False)",
        "buffer": 'self.register_buffer("{0}", {1})',
    }
    state = [made[each.role].format(each.name, each.value) for each in weights]
    names_inside = {each.name: f"self.{each.name}" for each in weights} | {i.name: i.name for i in passed}
    arguments = [names_inside.get(each.name, each.value) for each in inputs]
    marks = [f"torch._dynamo.maybe_mark_dynamic({i.name}, {dim})" for i in passed for dim in i.dynamic]
    plan = f"PLAN = Path(__file__).parent / {_PLAN!r}\n" if has_plan else "PLAN = None\n"
    own_state = _indented(["super().__init__()", "self.graph = Graph()", *state], 8)
    own_inputs = _indented([*(f"{i.name} = {i.value}" for i in passed), *marks], 4)
    names = ", ".join(each.name for each in passed)
    return f'''"""Repeats a failure of torchrlopt with random weights and inputs: python repro.py

It was: {" ".join(described(error).split()).replace(chr(92), "/").replace(chr(34), chr(39))[:500]}
"""

from pathlib import Path

import torch
import torchrlopt

OPTIONS = {settings!r}
{plan}

{MAKE.strip()}


{class_text("Graph", module)}

class Repro(torch.nn.Module):
    """The graph with its weights."""

    def __init__(self):
{own_state}
    def forward(self{", " + names if names else ""}):
        return self.graph({", ".join(arguments)})


def main():
    torch.manual_seed(0)
    model = Repro().eval()
{own_inputs}    inputs = ({names}{"," if names else ""})
    try:
        fast = torchrlopt.optimise(model, inputs, **OPTIONS, plan=PLAN and str(PLAN))
    except torchrlopt.errors.SearchError:
        if PLAN is None or {is_given}:
            raise
        # Symbols may have other names here, and the graph another hash: the same search is made then.
        fast = torchrlopt.optimise(model, inputs, **OPTIONS)
    print(fast.report)
    print("The failure was not repeated.")


if __name__ == "__main__":
    main()
'''


def _indented(lines: Sequence[str], depth: int) -> str:
    return "".join(f"{' ' * depth}{line}\n" for line in lines)
