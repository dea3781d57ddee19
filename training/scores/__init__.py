"""Evaluation of trained agents and world models: numbers, tables and plots."""
