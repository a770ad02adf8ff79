"""Charging: what an event of the engine costs a client's account."""
