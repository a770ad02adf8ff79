"""Charging for prefixes that clients share."""
