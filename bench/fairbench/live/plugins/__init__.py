"""Plugins: our schedulers inside other people's servers, and here what they share."""
