"""Loads models named on the command line: an .onnx file, or a function that makes one."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchrlopt import _C
from torchrlopt.errors import ModelFormatError, OptionsError, RlOptError

if TYPE_CHECKING:
    from torchrlopt.executors.lowering.around import Around

HELP = (
    "An .onnx file, or module:function[:argument] for a function that returns a model and the tuple of its "
    "inputs; baselines.models:build:resnet18 is the suite's resnet18."
)


def load_model(text: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Load a model by name, with inputs (generated from the types if it is a file).

    Args:
        text: see `HELP`.

    Raises:
        OptionsError: the text is neither, there is no such module or function, or the function failed.
        ModelFormatError: the file is malformed, or the function returned something else.
        UnsupportedError: the file's values take too much memory.
    """
    if text.endswith(".onnx"):
        # heavy
        from torchrlopt.capture.footprint import check_footprint
        from torchrlopt.executors.lowering.around import lower_alone
        from torchrlopt.onnx.files import load

        lowered = lower_alone(load(_existing(text)))
        check_footprint(lowered.module, "profiling")
        return lowered.module.eval(), _inputs_of(lowered)
    where, *rest = text.split(":")
    if not where or not rest or not rest[0]:
        raise OptionsError(
            f"no model {text!r}",
            expected="an .onnx file or module:function[:argument]",
            todo=f"for a model of the suite: baselines.models:build:{text}",
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # for the user's own models, after all that is installed
    made = _made(_function(where, rest[0], text), rest[1:], text)
    if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]):
        raise ModelFormatError(
            "the function does not return a model", where=text, expected="(module, inputs)", got=type(made)
        )
    model, inputs = made
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list)):
        raise ModelFormatError(
            "the function returns no inputs",
            where=text,
            expected="(module, inputs), inputs a tensor or the tuple of positional arguments",
            got=type(inputs),
        )
    return model, tuple(inputs)


def _inputs_of(lowered: Around) -> tuple[Any, ...]:
    """Return inputs that a model from a file can be run on, or the first candidates if none work."""
    # heavy
    from torchrlopt.executors.lowering.file_inputs import NUM_ATTEMPTS, drawn

    tried = []
    for attempt in range(NUM_ATTEMPTS):
        tried.append(tuple(drawn(lowered.arguments, seed=0, attempt=attempt)))
        with contextlib.suppress(Exception), torch.no_grad():  # its operators may raise anything
            lowered.module(*tried[-1])
            return tried[-1]
    return tried[0]


def _function(where: str, name: str, text: str) -> Callable[..., Any]:
    """Import the user's function.

    Raises:
        OptionsError: there is no such module or function, or the module cannot be imported.
    """
    try:
        return getattr(importlib.import_module(where), name)  # type: ignore[no-any-return]  # called below
    except (ImportError, AttributeError) as error:
        is_file = where.endswith(".py")
        todo = f"without the ending: {where.removesuffix('.py')}:{name}" if is_file else ""
        raise OptionsError(f"cannot find {where}:{name}", where=text, got=str(error), todo=todo) from error


def _made(function: Callable[..., Any], arguments: list[str], text: str) -> Any:
    """Call the user's function; raises OptionsError if it fails."""
    try:
        return function(*arguments)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise OptionsError(
            "the function that makes the model failed",
            where=f"{text}, {Path(place.filename).name}:{place.lineno}",
            got=f"{type(error).__name__}: {error}",
        ) from error


@contextmanager
def of_the_model(model: Callable[..., Any], inputs: Sequence[Any], text: str) -> Iterator[None]:
    """Wrap code that calls a model in any way: an error of the model itself is reported as such.

    Raises:
        OptionsError: the unchanged model fails on these inputs.
    """
    try:
        yield
    except (RlOptError, OSError):
        raise
    except Exception:
        try:
            with torch.no_grad():
                model(*inputs)
        except Exception as error:
            raise OptionsError(
                "the model fails on the inputs that come with it",
                where=text,
                got=f"{type(error).__name__}: {error}",
            ) from error
        raise


def load_graph(text: str) -> _C.Graph:
    """Load the graph of a model by name, as it is planned; a file is read directly.

    Raises:
        OptionsError: see `load_model`.
        RlOptError: the file is malformed, or the model cannot be captured.
    """
    # heavy
    from torchrlopt.capture.job import graph_of
    from torchrlopt.onnx.files import load
    from torchrlopt.onnx.reader import read

    if text.endswith(".onnx"):
        return read(load(_existing(text))).graph
    model, inputs = load_model(text)
    with of_the_model(model, inputs, text):
        return graph_of(model, inputs)


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise OptionsError("no such model", where=text, got="there is no such file")
    return path
