"""The studies of fairbench: reproductions of papers, attacks, traces and comparisons."""
