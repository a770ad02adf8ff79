"""The figures of [DLPM], each drawn from stored runs: one file a figure.

A figure's module has ``rows``, the numbers that it shows, and ``draw``, the picture of such rows.
Needs matplotlib and seaborn (extra ``plot``) only where something is drawn.
"""
