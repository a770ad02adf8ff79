"""Metrics: what a run's records say of service, fairness, latency, and the theorems' bounds.

Everything is computed from the service log and the request and program tables (``records``),
never from a scheduler's own counters: a scheduler that mis-charges would look fair.
"""
