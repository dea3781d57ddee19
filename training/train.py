"""Train an agent of any row; the run can be interrupted at any time and resumed.

    python -m training.train --row plan --minutes 10 --out runs/plan

The rows "mf", "plan" and "gumbel" learn from real episodes, "wm" and "wm_plus" in the imagination of a world
model. RLlib trains the networks of "mf" by other algorithms, and on clusters:

    python -m training.train --row mf --engine rllib --algo impala --num-env-runners 4 --out runs/impala
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from torchrlopt import _C
from torchrlopt.errors import OptionsError, RlOptError, UnsupportedError
from training.config import CHOICES, ONE_GRAPH, ROWS, Config, meanings
from training.device.prices import Prices, typical_prices
from training.dream_trainer import DreamTrainer
from training.real_trainer import RealTrainer
from training.trainer import Trainer


def trainer_of(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    prices: Prices | None = None,
    graph: _C.Graph | None = None,
) -> RealTrainer | DreamTrainer:
    """Create the run that trains the row of a configuration.

    Args:
        config: all arguments.
        folder: of the run.
        resume: continue the run in the folder.
        prices: of the device; the default device if None.
        graph: see `Trainer`.
    """
    given: dict[str, Any] = {"resume": resume, "prices": prices, "graph": graph}
    if config.row in DreamTrainer.rows:
        return DreamTrainer(config, folder, **given)
    return RealTrainer(config, folder, **given)


def add_arguments(parser: argparse.ArgumentParser, **own: Any) -> None:
    """Add one option for each argument of `Config`.

    Args:
        parser: to which they are added.
        own: the program's defaults, which replace those of `Config`.
    """
    told = meanings()
    for field in dataclasses.fields(Config):
        kind: dict[str, Any] = {"type": type(field.default), "choices": CHOICES.get(field.name)}
        if isinstance(field.default, bool):
            kind = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            default=argparse.SUPPRESS,  # arguments that are not given get the row's defaults
            help=f"{told[field.name]} [{_usual(field.name, own.get(field.name, field.default))}]",
            **kind,
        )
    parser.set_defaults(**own)


def _usual(name: str, default: Any) -> str:
    """The default of an argument, and that of each row with a different one."""
    others = [f"{row}: {given[name]}" for row, given in ROWS.items() if given.get(name, default) != default]
    if ONE_GRAPH.get(name, default) != default:
        others.append(f"with --graph: {ONE_GRAPH[name]}")
    return "; ".join([str(default), *others])


def config_of(given: argparse.Namespace) -> Config:
    """The configuration of parsed options; see `Config.of_row` for the defaults."""
    names = {field.name for field in dataclasses.fields(Config)}
    return Config.of_row(**{name: value for name, value in vars(given).items() if name in names})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--resume", action="store_true", help="continue the run in it")
    add_arguments(parser)
    engine = parser.add_argument_group("RLlib", "the extra `rllib`; data depend on how fast processes are")
    engine.add_argument("--engine", choices=("own", "rllib"), default="own", help="who trains [own]")
    engine.add_argument("--algo", default="ppo", help="ppo, appo, impala or dqn [ppo]")
    for name, number, told in (
        ("num-env-runners", 2, "processes that play, one processor each; 0: this process"),
        ("num-learners", 0, "processes that learn; 0: this process"),
        ("batch", 512, "steps of an update"),
    ):
        engine.add_argument(f"--{name}", type=int, default=number, help=f"{told} [{number}]")
    engine.add_argument("--ray", default="", help="address of a cluster; if empty, Ray is started here")
    given = parser.parse_args()
    try:
        if given.ray and given.engine != "rllib":
            raise OptionsError("only RLlib trains on a cluster", expected="--engine rllib", got="--ray")
        config, named = config_of(given), {"resume": given.resume, "prices": typical_prices()}
        if given.engine == "rllib":
            try:
                from training.engines.rllib import Engine, RllibTrainer  # heavy, and an extra
            except ImportError as error:
                how = "pip install -e '.[train,rllib]'"
                raise UnsupportedError("RLlib is not installed", got=str(error), todo=how) from error

            settings = Engine(given.algo, given.num_env_runners, given.num_learners, given.batch, given.ray)
            trainer: Trainer = RllibTrainer(settings, config, given.out, **named)
        else:
            trainer = trainer_of(config, given.out, **named)
        trainer.run()
    except (RlOptError, FileExistsError) as error:
        parser.error(str(error))
    print(trainer.export())


if __name__ == "__main__":
    main()
