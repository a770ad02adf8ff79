"""Metrics: service, fairness, latency and theorem bounds, computed from a run's records.

Everything is computed from the service log and the request and program tables (``records``), never
from a scheduler's own counters: otherwise a scheduler that charges wrongly would look fair.
"""
