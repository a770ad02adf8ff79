"""Plugins: our schedulers inside other people's servers."""
