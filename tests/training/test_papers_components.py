"""Components work alone, fit together, and are those used by the trainers: training/papers/components/."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.agent.agent_cases import LIBRARY, make_observation
from tests.training.collector_cases import Numbers
from torchrlopt.agent.networks.actions import Legal
from training.config import ROWS, Config
from training.episodes.random_keys import gumbel_of
from training.episodes.searched_play import SearchedRollout
from training.papers.components import specs
from training.papers.components.component import Array, Component, Composition, Many, ShapeError, Spec, check
from training.papers.components.rows import build, composition
from training.rollout import RolloutBuilder
from training.train import trainer_of
from training.world.sequences import Sequences

SMALL = {"width": 16, "rounds": 2, "max_steps": 3, "epochs": 1, "model_epochs": 1, "dream_horizon": 2}
CASES = [
    (row, spec.name)
    for row in ROWS
    for spec in composition(Config.of_row(row, **SMALL)).specs
    if spec.name != "collector"  # its tasks play with all others: it stands alone below
]


def component_of(row: str, name: str) -> Component:
    return Component(composition(Config.of_row(row, **SMALL))[name])


def examples(component: Component) -> dict[str, Any]:
    """What a component takes, made without any other component: at random, or by the environment."""
    takes = component.spec.takes
    source = torch.Generator().manual_seed(0)
    seen = make_observation(2)
    substitutions = len(LIBRARY)

    def drawn(space: Any) -> torch.Tensor:
        sizes = {"B": 2, "N": len(seen.ops)}
        return torch.randn([sizes.get(size, size) for size in space.shape], generator=source)

    def sequences() -> Sequences:
        mask = torch.ones(3, 5, substitutions + 1, dtype=torch.bool)
        return Sequences(
            torch.rand(3, 5, 34, generator=source),
            torch.zeros(3, 4, 2, dtype=torch.int64),
            torch.rand(3, 4, generator=source),
            torch.zeros(3, 4, dtype=torch.bool),
            mask,
            mask[..., :-1].to(torch.uint8),
            torch.rand(3, 5, substitutions, generator=source).half(),
            torch.rand(3, 4, generator=source),
            torch.ones(3, 4, dtype=torch.bool),
        )

    made: dict[str, Any] = {}
    for name, space in takes.items():
        if name == "observation":
            made[name] = seen
        elif name == "keys":
            made[name] = torch.tensor([[0, 1, 0], [0, 1, 1]])
        elif name == "legal":
            mask = torch.ones(2, substitutions + 1, dtype=torch.bool)
            made[name] = Legal(mask, mask[:, :-1].long(), torch.zeros(2, substitutions))
        elif name == "actions":
            made[name] = torch.zeros([2, *space.shape[1:]], dtype=torch.int64)
        elif name == "outcome":
            done = torch.ones(2, dtype=torch.bool)
            made[name] = {"reward": torch.zeros(2), "terminated": done, "ended": done}
        elif name == "rollouts":
            policy = component.built[0].eval()
            builder = RolloutBuilder(2)
            with torch.no_grad():
                actions, told = policy.act(seen, gumbel_of(source))
            done = torch.ones(2, dtype=torch.bool)
            earned = torch.tensor([0.1, 0.3])
            builder.add(seen, actions, told.log_prob, told.value, earned, done, done)
            made[name] = [builder.finish(told.value)]
            if component.spec.takes[name] == Many(specs.SEARCHED_ROLLOUT):
                share = torch.ones(2, 2)
                searched = SearchedRollout(
                    **vars(made[name][0]),
                    policies=[torch.full((len(seen.candidates) + 2,), 0.1)],
                    best=share,
                    found=share[:1],
                    greedy_gain=0.0,
                    num_shown=0,
                )
                made[name] = [searched]
        elif name == "replay":
            made[name] = sequences()
        elif name == "episodes":
            made[name] = [SimpleNamespace(seen=sequences()), SimpleNamespace(seen=sequences())]
        else:
            made[name] = drawn(space)
    return made


@pytest.mark.parametrize(("row", "name"), CASES)
def test_a_component_stands_alone_and_gives_what_its_spec_says(row: str, name: str) -> None:
    component = component_of(row, name)
    found = component(**examples(component))
    assert set(found) == set(component.spec.gives)


def first_array(values: Mapping[str, Any], takes: Mapping[str, Any]) -> tuple[str, Any]:
    """The name of a value, and the same value with an array of another shape in it."""
    name, space = next(iter(takes.items()))
    return name, widened(values[name], space)


def widened(value: Any, space: Any) -> Any:
    if isinstance(space, Array):
        return value[..., None]
    if isinstance(space, Many):
        return [widened(value[0], space.of)]
    name, inner = next((name, each) for name, each in space.items() if not isinstance(each, Many))
    part = value[name] if isinstance(value, Mapping) else getattr(value, name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{name: widened(part, inner)})
    return SimpleNamespace(**{**vars(value), name: widened(part, inner)})


@pytest.mark.parametrize(("row", "name"), CASES)
def test_another_shape_is_refused_with_the_component_and_both_shapes(row: str, name: str) -> None:
    component = component_of(row, name)
    values = examples(component)
    wrong, value = first_array(values, component.spec.takes)
    with pytest.raises(ShapeError) as raised:
        component(**{**values, wrong: value})
    error = raised.value
    assert f"the component {name} " in str(error)
    assert wrong in error.where
    assert str(error.expected).startswith("[")
    assert isinstance(error.got, Array)
    assert error.got.shape[-1] == 1


def test_a_collector_stands_alone() -> None:
    space = {"product": Array((64,)), "turned": Array((3, 64))}
    config = Config(row="mf")
    spec = specs.collector(config, Numbers(), lambda seed, update, group: seed + update + group, "all", space)
    collector = Component(spec)
    keys = torch.tensor([[0, 1, 0], [0, 1, 1]])
    found = collector(weights=np.arange(40, dtype=np.uint8), keys=keys)
    assert [each["key"] for each in found["all"]] == [1, 2]
    with pytest.raises(ShapeError, match="component collector"):
        collector(weights=np.arange(40.0), keys=keys)
    other = specs.collector(config, Numbers(), lambda *key: sum(key), "all", {"product": Array((65,))})
    with pytest.raises(ShapeError, match=r"expected: \[65\] float32.*got: \[64\] float32"):
        Component(other)(weights=np.arange(40, dtype=np.uint8), keys=keys)


def test_what_a_component_gives_is_checked_too() -> None:
    spec = Spec("half", {"x": Array(("B",))}, {"y": Array(("B",))}, lambda: None, lambda _, x: {"y": x[1:]})
    with pytest.raises(ShapeError, match=r"gives y; expected: \[B\] float32 with B = 3; got: \[2\] float32"):
        Component(spec)(x=torch.zeros(3))
    nothing = dataclasses.replace(spec, run=lambda _, x: {})
    with pytest.raises(ShapeError, match=r"gives y; .*got: nothing"):
        Component(nothing)(x=torch.zeros(3))


def test_letters_stand_for_one_size_in_a_call() -> None:
    sizes: dict[str, int] = {}
    space = {"values": Array(("T+1", "B")), "rewards": Array(("T", "B"))}
    check("memory", "takes", space, {"values": torch.zeros(4, 2), "rewards": torch.zeros(3, 2)}, sizes)
    assert sizes == {"T": 3, "B": 2}
    with pytest.raises(ShapeError, match="T = 3, B = 2"):
        check("memory", "takes", space, {"values": torch.zeros(4, 2), "rewards": torch.zeros(4, 2)}, {})


def test_components_that_do_not_fit_are_refused_when_they_are_composed() -> None:
    parts = composition(Config.of_row("mf", **SMALL))
    wide = specs.encoder(Config.of_row("mf", **{**SMALL, "width": 32}))
    others = tuple(wide if spec.name == "encoder" else spec for spec in parts.specs)
    with pytest.raises(ShapeError, match=r"controller takes another nodes than encoder .*16\].*32\]"):
        Composition("mf", others, parts.outside)
    alone = tuple(spec for spec in parts.specs if spec.name != "encoder")
    with pytest.raises(ShapeError, match="controller takes another nodes than any component gives"):
        Composition("mf", alone, parts.outside)


@pytest.mark.parametrize(("row", "macros"), [*((row, False) for row in ROWS), ("wm", True)])
def test_what_is_composed_is_what_the_trainer_of_the_row_runs(row: str, macros: bool, tmp_path: Path) -> None:
    config = Config.of_row(row, macros=macros, **SMALL)
    parts = build(composition(config))
    trainer: Any = trainer_of(config, tmp_path)

    def shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in module.state_dict().items()}

    assert shapes(parts["encoder"].built) == shapes(trainer.controller.encoder)
    assert shapes(parts["learner"].built[0]) == shapes(trainer.controller)
    assert parts["collector"].built._given == trainer.collector._given
    if "world model" in parts:
        assert shapes(parts["world model"].built) == shapes(trainer.model)
        assert shapes(parts["controller"].built) == shapes(trainer.policy)
        assert type(parts["memory"].built) is type(trainer.replay)
    else:
        heads = shapes(trainer.controller)
        own = shapes(parts["controller"].built)
        assert own == {name: shape for name, shape in heads.items() if not name.startswith("encoder.")}
