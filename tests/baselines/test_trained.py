"""Models with trained weights: their tasks are what they say, and what is missing is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the small transformers come from the transformers package")

from baselines.trained.table import NAMES, missing, trained
from baselines.trained.task import accuracy

#: What float32 achieves at least, or at most, on what was held out.
AT_LEAST = {"accuracy": 0.85}
AT_MOST = {"perplexity": 8.0}


def test_accuracy_is_over_all_rows_of_all_calls() -> None:
    figure = accuracy(np.array([1, 0, 1]))
    assert figure([[np.array([[0.0, 1.0], [0.0, 1.0]])], [np.array([[0.0, 1.0]])]]) == pytest.approx(2 / 3)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="digits_vit needs a package: pip install scikit-learn"):
        trained("digits_vit")
    with pytest.raises(ValueError, match="no trained model named 'digits'; choose one of: digits_vit"):
        trained("digits")


@pytest.mark.nightly  # trains some for minutes, in the first run of a user
@pytest.mark.parametrize("name", NAMES)
def test_a_model_does_its_task(name: str) -> None:
    if todo := missing(name):
        pytest.skip(todo)
    task = trained(name)
    shapes = [[x.shape for x in call] for call in (task.inputs, *task.others, *task.held_out)]
    assert all(each == shapes[0] for each in shapes)
    assert len(task.others) == 15
    with torch.no_grad():
        answers = [[task.model(*call).numpy()] for call in task.held_out]
        noise = [[np.random.default_rng(0).random(call[0].shape, np.float32)] for call in answers]
        assert (
            task.model.double()(*(x.double() if x.is_floating_point() else x for x in task.inputs))
            .isfinite()
            .all()
        )
    good, bad = task.figure(answers), task.figure(noise)
    if task.unit in AT_LEAST:
        assert bad < AT_LEAST[task.unit] <= good + 1e-9
    else:
        assert good <= AT_MOST[task.unit] < bad
