"""Training by RLlib (extra `rllib`): its algorithms, collection and learners, on one machine or a cluster.

Unlike those of this package's own loop, data depend on how fast processes are: a run is not repeatable.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from torchrlopt.errors import OptionsError
from training.config import Config
from training.engines.curriculum_env import CurriculumEnv, Episodes
from training.engines.rllib_module import ControllerModule, QModule
from training.real_trainer import new_networks
from training.trainer import Trainer

_FOLDER = "rllib"  # of the algorithm's own state, in the folder of the run


@dataclasses.dataclass(frozen=True)
class Engine:
    """How RLlib trains.

    Attributes:
        algo: a name in `ALGORITHMS`.
        num_env_runners: processes that play, with one processor each; 0 plays in this process.
        num_learners: processes that learn; 0 learns in this process.
        batch: steps of an update.
        address: of a cluster; if empty, Ray is started on this machine.
    """

    algo: str = "ppo"
    num_env_runners: int = 2
    num_learners: int = 0
    batch: int = 512
    address: str = ""

    def __post_init__(self) -> None:
        if self.algo not in ALGORITHMS:
            raise OptionsError("there is no such algorithm", expected=" or ".join(ALGORITHMS), got=self.algo)
        for name in ("num_env_runners", "num_learners"):
            if getattr(self, name) < 0:
                raise OptionsError(f"{name} is below 0", got=getattr(self, name))


def _actor_critic(made: Any, config: Config, engine: Engine, **own: Any) -> AlgorithmConfig:
    settled: AlgorithmConfig = made.training(
        train_batch_size_per_learner=engine.batch,
        entropy_coeff=config.entropy_weight,
        vf_loss_coeff=config.value_weight,
        **own,
    )
    return settled


def _ppo(config: Config, engine: Engine) -> AlgorithmConfig:
    own = {
        "num_epochs": config.epochs,
        "minibatch_size": min(128, engine.batch),
        "lambda_": config.gae_lambda,
    }
    clipped = {"clip_param": config.clip, "use_kl_loss": False}
    return _actor_critic(PPOConfig(), config, engine, **own, **clipped)


def _appo(config: Config, engine: Engine) -> AlgorithmConfig:
    return _actor_critic(APPOConfig(), config, engine, clip_param=config.clip, use_kl_loss=False)


def _impala(config: Config, engine: Engine) -> AlgorithmConfig:
    return _actor_critic(IMPALAConfig(), config, engine, grad_clip=config.max_gradient)


def _dqn(config: Config, engine: Engine) -> AlgorithmConfig:
    """Double Q-learning with prioritised replay, as in Ape-X if several processes play."""
    made = DQNConfig().training(
        double_q=True,
        dueling=False,
        replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 50_000},
        num_steps_sampled_before_learning_starts=engine.batch,
        train_batch_size_per_learner=32,
    )
    # By default it learns after each step, and reports after a thousand.
    return made.env_runners(rollout_fragment_length=8).reporting(
        min_sample_timesteps_per_iteration=engine.batch, min_time_s_per_iteration=0
    )


ALGORITHMS: dict[str, Callable[[Config, Engine], AlgorithmConfig]] = {
    "ppo": _ppo,
    "appo": _appo,
    "impala": _impala,
    "dqn": _dqn,
}


class RllibTrainer(Trainer):
    """A run of the row "mf" by RLlib.

    Args:
        engine: how it trains.
        given: see `Trainer`.

    Raises:
        OptionsError: see `Trainer`; or the cluster has too few processors.
    """

    rows = ("mf",)

    def __init__(self, engine: Engine, *given: Any, **named: Any) -> None:
        self.engine = engine
        super().__init__(*given, **named)

    def build(self) -> None:
        """See `Trainer`."""
        self.controller = new_networks(self.config)
        self.collector: Any = _Ray(self.engine)  # what `Trainer` uses of a collector
        self._algorithm: Algorithm | None = None

    def parts(self) -> dict[str, Any]:
        """See `Trainer`."""
        return {"controller": self.controller}

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, which is made, or restored, when it is first needed."""
        if self._algorithm is None:
            self.collector.start()
            self._algorithm = self._settings().build_algo()
            if self.update > 0:
                self._algorithm.restore_from_path(str((self.folder / _FOLDER).absolute()))
        return self._algorithm

    def step(self) -> dict[str, float]:
        """One update by RLlib; returns losses and scores by name."""
        result = self.algorithm.train()
        self.update += 1
        self.real_steps = int(result["num_env_steps_sampled_lifetime"])
        self.seconds = float(result["time_total_s"])
        played, learned = result["env_runners"], result.get("learners", {}).get("default_policy", {})
        logs = {name: learned.get(name) for name in ("policy_loss", "vf_loss", "qf_loss", "entropy")}
        for name, theirs in (("mean_return", "episode_return_mean"), ("mean_length", "episode_len_mean")):
            logs[name] = played.get(theirs)
        found = {name: float(value) for name, value in logs.items() if value is not None}
        return {**found, "real_steps": float(self.real_steps)}

    def save(self) -> None:
        """See `Trainer`; the algorithm's own state is in a folder beside it."""
        if self._algorithm is not None:
            module = self._algorithm.get_module()
            self.controller.load_state_dict(module.controller.state_dict())
            self._algorithm.save_to_path(str((self.folder / _FOLDER).absolute()))
        super().save()

    def _settings(self) -> AlgorithmConfig:
        config, engine = self.config, self.engine
        is_q = engine.algo == "dqn"
        settings: dict[str, Any] = {"config": config.to_json()}
        if is_q:
            settings["epsilon"] = [(0, 1.0), (20 * engine.batch, 0.02)]
        made = ALGORITHMS[engine.algo](config, engine)
        return (
            made.environment(
                CurriculumEnv, env_config={"episodes": Episodes(config, self.prices, self.graph_text)}
            )
            .framework("torch")
            .rl_module(
                rl_module_spec=RLModuleSpec(
                    module_class=QModule if is_q else ControllerModule, model_config=settings
                )
            )
            .env_runners(num_env_runners=engine.num_env_runners, num_envs_per_env_runner=1)
            .learners(num_learners=engine.num_learners)
            .training(gamma=config.discount, lr=config.learning_rate)
            .debugging(seed=config.seed, log_level="ERROR")
        )


class _Ray:
    """Ray, while a run needs it: here, or a cluster."""

    def __init__(self, engine: Engine) -> None:
        self._wanted = engine.num_env_runners + engine.num_learners + 1
        self._address = engine.address
        self._is_own = False

    def start(self) -> None:
        """Start or join Ray, unless this process has."""
        if ray.is_initialized():
            return
        # Ray starts processes at the lowest priority, at which those that play get no turn on a busy machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
        here = {} if self._address else {"num_cpus": self._wanted, "include_dashboard": False}
        ray.init(address=self._address or "local", log_to_driver=False, logging_level=logging.ERROR, **here)
        self._is_own = True
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < self._wanted:  # it would wait forever
            self.close()
            raise OptionsError("Ray has too few processors", expected=self._wanted, got=there)

    def close(self) -> None:
        """Leave or stop Ray, if this started it."""
        if self._is_own:
            ray.shutdown()
        self._is_own = False

    def __enter__(self) -> _Ray:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
