"""Attacks: clients with an incentive, what they gain by it, and what the others lose."""
