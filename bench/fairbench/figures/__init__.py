"""The figures of runs, traces and plans, and their common style.

Needs matplotlib and seaborn (extra ``plot``) only where something is drawn.
"""
