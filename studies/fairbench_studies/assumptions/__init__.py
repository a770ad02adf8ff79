"""Studies of two assumptions: the loads of workloads, and the error of timing profiles."""
