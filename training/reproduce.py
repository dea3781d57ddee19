"""The papers' experiments by one command: our values beside theirs.

    python training/reproduce.py all --quick

Each experiment is made of runs. A run that has ended is kept in the folder as a file and not made again, so
that the command goes on where it was left. Figures and `REPORT.md` are drawn from the CSV files that runs
leave; the committed ones, with no run made:

    python training/reproduce.py all --data training/results --out runs/drawn
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

if __package__ in (None, ""):  # started as a file, not as a module
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    # Imported here: processes that collect import this file too, and need nothing of it.
    from training.papers.reproduction import main

    typer.run(main)
