"""The gateway, a queue before the cluster that orders, releases and refuses requests."""
