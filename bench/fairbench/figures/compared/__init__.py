"""Figures and tables of a user's comparison or sweep."""
