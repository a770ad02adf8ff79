"""The driver: it sends an experiment's programs to real servers and records the answers."""
