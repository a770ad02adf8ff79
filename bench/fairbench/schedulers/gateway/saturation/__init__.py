"""The saturation detectors of a queue before the cluster, one per file."""
