"""Reproduces a failure elsewhere: a folder with the graph as a program, options, plan and traceback."""
