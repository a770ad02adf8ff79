"""Charging: the cost that each event of the engine adds to a client's account."""
