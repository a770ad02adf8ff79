"""Workloads: the programs of clients, by program kinds, traffic, workload files and real input.

``spec.load_workload`` reads a file, ``clients.plan_clients`` makes clients of it, and
``plan.program_stream`` the programs of each client.
"""
