"""Execution of experiments. Nothing in this package prints or exits."""
