"""Attacks: clients that cheat, what they gain, and what the other clients lose."""
