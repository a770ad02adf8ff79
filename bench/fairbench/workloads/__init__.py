"""Workloads: the programs of clients, by program kinds, traffic, workload files and real input.

A file is read by ``spec.load_workload``; ``clients.plan_clients`` makes clients of it, and
``plan.program_stream`` the programs of each.
"""
