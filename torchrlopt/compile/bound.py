"""A compiled graph that is called with the same weights again and again: they are passed on once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torchrlopt import _C
from torchrlopt.compile.compiled import RECORDING, Compiled
from torchrlopt.executors.registry import Bound, Lowered

logger = logging.getLogger("torchrlopt")


class BoundGraph:
    """Calls a graph; nothing is kept alive for it but what is computed from the weights.

    Args:
        run: the graph.
        template: its inputs, with places for what each call brings along.
        watch: says whether the model is as it was; None where somebody holds the inputs.
    """

    def __init__(
        self,
        run: Callable[[tuple[Any, ...]], Sequence[Any]],
        template: _C.Template,
        watch: _C.ModuleWatch | None,
    ) -> None:
        self._run, self._template, self._watch = run, template, watch

    def __call__(self, values: tuple[Any, ...]) -> Sequence[Any] | None:
        """The outputs; None where the model has changed.

        Args:
            values: what the call brings along.
        """
        args = self._filled(values)
        return None if args is None else self._run(args)

    def _filled(self, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._watch is None:
            return self._template.filled(values)
        return self._watch.fill(self._template, values)


class BoundCompiled(BoundGraph):
    """The same of `Compiled`, straight to the executor where that has a way.

    Args:
        compiled: the graph.
        template: as above.
        varying: positions of the places.
        watch: as above.
    """

    def __init__(
        self,
        compiled: Compiled,
        template: _C.Template,
        varying: Sequence[int],
        watch: _C.ModuleWatch | None,
    ) -> None:
        super().__init__(compiled.run, template, watch)
        self._compiled, self._varying = compiled, tuple(varying)
        self._call: Bound | None = None
        self._lowered: Lowered | None = None  # what is called
        self._evaluations = -1  # when that was tried

    def __call__(self, values: tuple[Any, ...]) -> Sequence[Any] | None:
        """See above."""
        call, has_failed = self._call, False
        if call is not None and self._compiled.lowered is self._lowered and RECORDING.calls is None:
            try:
                outputs = call(values)
            except Exception:
                logger.debug("a call failed and is made once more", exc_info=True)
                self._call = outputs = None  # `Compiled` knows what to do where it fails again
                has_failed = True
            if outputs is not None:
                return self._compiled.returned(outputs)
        args = self._filled(values)
        if args is None:
            return None
        try:
            outputs = self._run(args)
        except Exception:
            if has_failed:
                self._lowered = None  # the call was wrong, not its way: later ones are bound again
            raise
        if RECORDING.calls is None:
            self._bind(args)
        return outputs

    def _bind(self, args: tuple[Any, ...]) -> None:
        """After a call with new weights: those of later ones are these."""
        lowered = self._compiled.lowered
        evaluations = getattr(lowered, "num_evaluations", 0)
        if lowered is None or (lowered is self._lowered and evaluations == self._evaluations):
            return
        self._lowered, self._evaluations = lowered, evaluations
        bind = getattr(lowered, "bound", None)
        self._call = None if bind is None else bind(self._template, args, self._varying, self._watch)
