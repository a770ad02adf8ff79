"""Policies that choose the next flow of a queue before the cluster, one policy per file."""
