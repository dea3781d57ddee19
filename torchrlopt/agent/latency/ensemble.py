"""An ensemble of latency networks: forecasts with their doubt, and its file.

What it foretells is which of several graphs of one model is the fastest in an executor. Its prices are those
of a typical machine with one thread, on which it was trained: what differs between machines changes all of
the graphs alike, more or less.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.agent.latency.network import LatencyNetwork, PricedGraphs
from torchrlopt.agent.observation import Schema
from torchrlopt.agent.undisturbed_torch import making_networks, undisturbed_torch
from torchrlopt.errors import AgentError
from torchrlopt.machine.cost import cost_model

FORMAT = 1  # raised when the meaning of a file changes
THREADS = 1  # of the kernels that were measured
SHIPPED = Path(__file__).parents[1] / "shipped" / "latency.safetensors"


@dataclasses.dataclass
class LatencyEnsemble:
    """Networks that were trained on different drawings of the same measurements.

    Attributes:
        networks: M of them, for the same executors, in evaluation mode.
        metadata: provenance, strings.
    """

    networks: nn.ModuleList
    metadata: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def executors(self) -> tuple[str, ...]:
        """Those that were measured."""
        first = self.networks[0]
        assert isinstance(first, LatencyNetwork)
        return first.executors

    def forecast(self, graphs: PricedGraphs, executor: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation over the networks, of the logarithm of microseconds.

        Args:
            graphs: B of them, priced by `cost_model` for `THREADS`.
            executor: [B], int64, positions in `executors`.

        Returns:
            [B] and [B].
        """
        with torch.no_grad():
            found = torch.stack([network(graphs, executor) for network in self.networks])
        return found.mean(0), found.std(0, correction=0)

    def log_us(
        self, graphs: Sequence[_C.Graph], executor: str, sizes: Mapping[str, int]
    ) -> tuple[list[float], list[float]]:
        """The same for graphs of one executor; the state of torch is as before.

        Args:
            graphs: any.
            executor: one of `executors`.
            sizes: example sizes of symbols.
        """
        cost, place = cost_model(executor, "cpu", sizes, THREADS), self.executors.index(executor)
        with undisturbed_torch():
            priced = PricedGraphs.joined([PricedGraphs.of(graph, cost) for graph in graphs])
            mean, deviation = self.forecast(priced, torch.full((len(graphs),), place))
        return mean.tolist(), deviation.tolist()

    def save(self, path: Path, extra: Mapping[str, Any]) -> None:
        """Write it, and its manifest.

        Args:
            path: of the safetensors file.
            extra: further metadata; values that are not strings become JSON.
        """
        first = self.networks[0]
        assert isinstance(first, LatencyNetwork)
        metadata = {
            **{name: value if isinstance(value, str) else json.dumps(value) for name, value in extra.items()},
            "format": str(FORMAT),
            "kind": "latency",
            "members": str(len(self.networks)),
            "architecture": json.dumps(first.sizes),
            "executors": json.dumps(first.executors),
            "schema": first.schema.to_json(),
        }
        checkpoint.write_state(path, self.networks.state_dict(), metadata)

    @classmethod
    def load(cls, path: Path) -> LatencyEnsemble:
        """Read what `save` wrote.

        Raises:
            AgentError: a file is missing, damaged or something else, or a column of the observation is gone.
        """
        content = checkpoint.verified_content(path)
        metadata = checkpoint.metadata_of(path, content)
        expected = {"format": str(FORMAT), "kind": "latency"}
        if {name: metadata.get(name) for name in expected} != expected:
            raise AgentError("this is no latency model", where=str(path), expected=expected, got=metadata)
        schema = Schema.from_json(metadata.get("schema", ""))
        schema.check(Schema.current())
        try:
            sizes, executors = json.loads(metadata["architecture"]), json.loads(metadata["executors"])
            with making_networks():
                networks = nn.ModuleList(
                    LatencyNetwork(schema, executors, **sizes) for _ in range(int(metadata["members"]))
                )
                networks.load_state_dict(load_tensors(content))
        except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise AgentError("this is no latency model", where=str(path), got=repr(error)[:300]) from error
        return cls(networks.eval(), metadata)


@functools.cache
def shipped() -> LatencyEnsemble:
    """The one that comes with the package.

    Raises:
        AgentError: it is missing or damaged.
    """
    return LatencyEnsemble.load(SHIPPED)
