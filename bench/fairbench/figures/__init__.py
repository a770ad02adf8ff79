"""The figures of runs, traces and plans, and the style that every picture has.

Needs matplotlib and seaborn (extra ``plot``) only where something is drawn.
"""
