"""What the commands of `baselines/` have in common: arguments, rounds of calls, tables, files, plots."""
