"""The table of generated text in docs/measuring.md is that of the raw measurements."""

from __future__ import annotations

import csv
import statistics

from baselines.decode import MODELS, WAYS
from tests.docs.pages import ROOT


def test_milliseconds_for_a_token() -> None:
    with (ROOT / "baselines" / "results" / "decode.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    page = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")
    for model in MODELS:
        cells = [model]
        for way in WAYS:
            times = [float(row["ms_per_token"]) for row in rows if (row["model"], row["way"]) == (model, way)]
            median = statistics.median(times)
            if way == "eager":
                base = median
                cells.append(f"{median:.2f}")
            else:
                cells.append(f"{median:.2f} ({base / median:.2f}x)")
        assert f"| {' | '.join(cells)} |" in page
