"""Two assumptions of the results: the workloads' loads, and the error of timing profiles."""
