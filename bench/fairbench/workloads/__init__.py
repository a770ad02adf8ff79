"""What clients run: program kinds, arrival processes, workload files and real input.

``spec`` is the door: ``load_workload``, ``plan_clients``, ``program_stream``.
"""
