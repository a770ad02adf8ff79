"""Estimates of a workload's demand on a cluster, made without running the workload."""
