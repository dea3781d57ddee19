"""Some real architectures through torch.compile; `make zoo` runs all of them."""

from __future__ import annotations

import pytest

from tests.crosses import nightly_but

pytest.importorskip("transformers", reason="most of the collection comes from the transformers package")
pytest.importorskip("torch_geometric", reason="graph neural networks need torch_geometric")

from baselines.collection.run import run
from tests.e2e.models import STRICT

SOME = (
    "deberta_v2",
    "gpt2",
    "llama/static",
    "vit",
    "wav2vec2",
    "clip",
    "shufflenet",
    "dlrm",
    "multihead_attention",
    "gat",
)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("label", nightly_but(["dlrm", "multihead_attention"], SOME))
def test_architecture(label: str) -> None:
    outcome = run(label, {**STRICT, "cache": False}, batches=(2, 3))
    assert outcome.status == "equal", outcome.trace or outcome.detail
    assert outcome.graphs > 0
