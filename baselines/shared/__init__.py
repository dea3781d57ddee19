"""Shared code of the commands in `baselines/`: arguments, rounds of calls, tables, files, plots."""
