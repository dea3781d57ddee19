"""Run the papers' experiments with one command, and compare our values with theirs.

    python training/reproduce.py all --quick

Each experiment consists of runs. The result of a finished run is cached in a file in the folder, so an
interrupted command continues where it stopped. Figures and `REPORT.md` are drawn from the CSV files of the
results. To draw the committed ones without making any runs:

    python training/reproduce.py all --data training/results --out runs/drawn
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

if __package__ in (None, ""):  # run as a script, not as a module
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    # Imported here: worker processes import this file too, and need nothing of it.
    from training.papers.reproduction import main

    typer.run(main)
