"""Studies of two assumptions: the loads in workload files, and the error of timing profiles."""
