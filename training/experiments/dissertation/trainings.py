"""Which trainings the figures of the rows are made of; figures that ask for the same one share it."""

from __future__ import annotations

from collections.abc import Sequence

from training.experiments.dissertation.latency_run import LatencyRun
from training.experiments.dissertation.rivals import TASO_STEPS, RivalsRun
from training.experiments.dissertation.row_run import GPU, ROW_TITLES, RowOutcome, RowRun
from training.experiments.dissertation.subjects import bert, subjects
from training.experiments.dissertation.temperature_run import TemperatureRun
from training.experiments.runs import Scale, Workplace

UPDATES = 400  # of a training, in full
REWARD_UPDATES = 100  # of one for each reward: a quarter, as theirs (500 epochs of 2,000)
DREAM_UPDATES = 100  # of a policy for each temperature
LEAST = 4  # two of a world model's only collect at random
THEIR_EPOCHS = {"mf": 2_000, "wm": 1_000}
TEMPERATURES = (0.1, 0.5, 0.75, 1.0, 1.2, 1.5, 1.75, 2.0, 2.5, 3.0)
ALPHAS = tuple(tenths / 10 for tenths in range(11))
#: Points of the grid that have a name in the dissertation, so that both are one run.
NAMED = {0.1: "R3", 0.5: "R4", 0.8: "R1", 1.0: "R5"}
OURS = "best_so_far"
REWARDS = ("R1", "R2", "R3", "R4", "R5", OURS)

NOTE = (
    "A graph at a time, by the typical prices of eager PyTorch on a CPU; all episodes begin at the graph "
    "itself.\nGreedy, TASO's search and random play in the same environment are the trivial rivals."
)
PROCESSOR_NOTE = f"{NOTE}\nTimes are of processors, since other programs run beside this one."
WALL_NOTE = f"{NOTE}\nMeasured are wall times, without those in which the one thread waited for a processor."


def least(scale: Scale, full: int) -> int:
    """Updates of a scale."""
    return max(LEAST, round(scale.share * full))


def updates_made(outcomes: Sequence[RowOutcome]) -> str:
    """How many updates trainings have really made; their time may have ended before."""
    made = [int(max(each.log["update"], default=0)) for each in outcomes]
    return f"{min(made)}" if min(made) == max(made) else f"{min(made)} to {max(made)}"


def rows(row: str, scale: Scale, place: Workplace) -> dict[tuple[str, int], RowRun]:
    """The trainings of a row by graph and seed."""
    updates = least(scale, UPDATES)
    return {
        (graph, seed): RowRun(row, graph, seed, updates, place.out, minutes=scale.minutes)
        for graph in subjects(scale)
        for seed in range(scale.seeds)
    }


def on_bert(row: str, scale: Scale, place: Workplace) -> list[RowRun]:
    """Those on the toy BERT, by seed."""
    return [run for (graph, _), run in rows(row, scale, place).items() if graph == bert(scale)]


def rivals(scale: Scale) -> dict[str, RivalsRun]:
    """By graph."""
    return {graph: RivalsRun(graph, 0, _taso_steps(scale)) for graph in subjects(scale)}


def _taso_steps(scale: Scale) -> int:
    return max(100, round(scale.share * TASO_STEPS))


def rows_on_gpu(scale: Scale, place: Workplace) -> dict[tuple[str, int], RowRun]:
    """Trainings on the toy BERT by row and seed, with typical prices of a GPU as rewards."""
    updates = least(scale, UPDATES)
    return {
        (row, seed): RowRun(row, bert(scale), seed, updates, place.out, device=GPU, minutes=scale.minutes)
        for row in ROW_TITLES
        for seed in range(scale.seeds)
    }


def rivals_on_gpu(scale: Scale) -> RivalsRun:
    """Those of `rows_on_gpu`."""
    return RivalsRun(bert(scale), 0, _taso_steps(scale), GPU)


def latencies(scale: Scale, place: Workplace) -> dict[str, LatencyRun]:
    """By graph; the plans of both rows are measured in turns."""
    both = [*rows("mf", scale, place).items(), *rows("wm", scale, place).items()]
    return {
        graph: LatencyRun(graph, tuple(run for key, run in both if key[0] == graph), others, place.out)
        for graph, others in rivals(scale).items()
    }


def rewards(scale: Scale, place: Workplace) -> dict[tuple[str, int], RowRun]:
    """Trainings of MF by reward and seed: the named ones, then the rest of the grid."""
    updates = least(scale, REWARD_UPDATES)
    names = dict.fromkeys((*REWARDS, *map(reward_at, ALPHAS)))
    return {
        (name, seed): RowRun("mf", bert(scale), seed, updates, place.out, name, minutes=scale.minutes)
        for name in names
        for seed in range(scale.seeds)
    }


def reward_at(alpha: float) -> str:
    """Name of the reward at a point of the grid."""
    return NAMED.get(alpha, f"alpha{alpha}")


def temperatures(scale: Scale, place: Workplace) -> dict[tuple[float, int], TemperatureRun]:
    """By temperature and seed; each in the world model of the training with that seed."""
    updates = least(scale, DREAM_UPDATES)
    return {
        (temperature, base.seed): TemperatureRun(base, temperature, updates, place.out)
        for temperature in TEMPERATURES
        for base in on_bert("wm", scale, place)
    }
