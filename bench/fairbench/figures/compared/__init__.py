"""Figures and tables of your own comparison or sweep."""
