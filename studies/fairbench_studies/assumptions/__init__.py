"""The loads of the workloads, and the error of the timing profile."""
