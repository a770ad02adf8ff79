"""Execution: how experiments are run. Nothing here prints or exits."""
