"""Charging rules: how much an event in an engine or a router costs a client."""
