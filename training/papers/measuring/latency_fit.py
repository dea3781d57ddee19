"""Fits an ensemble of latency networks to measured graphs.

Each member sees a bootstrap sample of the bases. The main objective is to rank the graphs of one base and
executor, which is what a search needs; the absolute level matters less.

`measured/` has one JSON line per graph. "base" says what it was made of ("train 17"): graphs of one base were
measured together, the base itself first. "us" is the lower quartile of every second run time in microseconds,
"again_us" that of the others, "noise" the standard error of "us" as a share of it, "steps" the number of
substitutions applied to the base, "text" the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import huber_loss, softplus

from torchrlopt import _C
from torchrlopt.agent.observation import Schema
from torchrlopt.machine.cost import cost_model
from training.papers.measuring.latency_network import LatencyNetwork, PricedGraphs
from training.progress import progress_bar

DATA = Path(__file__).parent / "measured"
_GROUPS = 12  # bases per batch
_LEVEL = 0.3  # weight of the absolute level, relative to the differences within a base
_RANK = 0.1
_HUBER = 0.1


@dataclasses.dataclass(frozen=True)
class Measured:
    """The graphs of one base on one executor, in the networks' input format.

    Attributes:
        base: what they were made of.
        executor: its name.
        graphs: V graphs with the typical prices of that executor.
        log_us: [V], measured.
        noise: [V], relative.
    """

    base: str
    executor: str
    graphs: PricedGraphs
    log_us: Tensor
    noise: Tensor

    @classmethod
    def of(cls, rows: pd.DataFrame) -> Measured:
        """From rows of one base and executor, measured with the number of threads that the prices assume."""
        first = rows.iloc[0]
        cost = cost_model(first["executor"], threads=int(first["threads"]))
        priced = [PricedGraphs.of(_C.parse_graph(text), cost) for text in rows["text"]]
        us, noise = (torch.tensor(rows[name].to_numpy(dtype="float32")) for name in ("us", "noise"))
        return cls(first["base"], first["executor"], PricedGraphs.joined(priced), us.log(), noise)


def measured_on(executor: str, most: int) -> list[Measured]:
    """The measurements of at most so many training bases on one executor."""
    rows = pd.read_json(DATA / f"{executor}.jsonl.xz", lines=True)
    of_base = rows[rows["base"].str.startswith("train ")].groupby("base", sort=False)
    return [Measured.of(own) for own in [own for _, own in of_base if len(own) > 1][:most]]


def loss_of(forecast: Tensor, target: Tensor, noise: Tensor, group: Tensor, count: int) -> Tensor:
    """Scalar training loss.

    Args:
        forecast: [V], logarithms of microseconds.
        target: [V], measured.
        noise: [V].
        group: [V], index of the base.
        count: number of bases.
    """
    residual = forecast - target
    sums = residual.new_zeros(count).index_add(0, group, residual)
    centred = residual - (sums / torch.bincount(group, minlength=count))[group]
    same = (group[:, None] == group[None, :]).triu(1)
    distance = target[:, None] - target[None, :]
    pairs = same & (distance.abs() > 3 * torch.maximum(noise[:, None], noise[None, :]))
    between = forecast[:, None] - forecast[None, :]
    rank = softplus(-20 * torch.sign(distance) * between)[pairs]
    level, within = (
        huber_loss(each, torch.zeros_like(each), delta=_HUBER) / _HUBER for each in (residual, centred)
    )
    return within + _LEVEL * level + (_RANK * rank.mean() if len(rank) else 0.0)


def fit(
    data: Sequence[Measured], executors: Sequence[str], members: int, epochs: int, seed: int
) -> list[LatencyNetwork]:
    """Train the members of an ensemble.

    Args:
        data: of training bases.
        executors: names.
        members: number of networks.
        epochs: passes over the data.
        seed: of weights, order and each member's bootstrap sample.
    """
    found: list[LatencyNetwork] = []
    with progress_bar() as progress:
        bar = progress.add_task("", total=members * epochs)
        for member in range(members):
            rng = torch.Generator().manual_seed(1000 * seed + member)
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(1000 * seed + member)
                network = LatencyNetwork(Schema.current(), executors)
            chosen = torch.randint(len(data), (len(data),), generator=rng).tolist()
            own = [data[i] for i in chosen] if members > 1 else list(data)
            optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-3)
            steps = epochs * -(-len(own) // _GROUPS)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
            for epoch in range(epochs):
                for places in torch.randperm(len(own), generator=rng).split(_GROUPS):
                    batch = [own[int(i)] for i in places]
                    forecasts, group = _forward(network, batch)
                    target, noise = (
                        torch.cat([getattr(each, name) for each in batch]) for name in ("log_us", "noise")
                    )
                    loss = loss_of(forecasts, target, noise, group, len(batch))
                    optimiser.zero_grad()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                    optimiser.step()
                    schedule.step()
                progress.update(bar, advance=1, description=f"member {member}, epoch {epoch}")
            found.append(network.eval())
    return found


def _forward(network: LatencyNetwork, batch: Sequence[Measured]) -> tuple[Tensor, Tensor]:
    """Forecasts for all graphs of a batch, [V], and the index of each graph's base."""
    counts = torch.tensor([len(each.log_us) for each in batch])
    group = torch.repeat_interleave(counts)
    executor = torch.tensor([network.executors.index(each.executor) for each in batch])[group]
    forecasts: Tensor = network(PricedGraphs.joined([each.graphs for each in batch]), executor)
    return forecasts, group


@torch.no_grad()
def forecast(networks: Sequence[LatencyNetwork], each: Measured) -> Tensor:
    """Ensemble mean of the logarithms of microseconds, [V]."""
    return torch.stack([_forward(network, [each])[0] for network in networks]).mean(0)
