"""What the commands of `baselines/` have in common: arguments, rounds of measurement, tables, files, plots."""
