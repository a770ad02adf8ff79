"""Figures and tables of a comparison or sweep of one's own."""
