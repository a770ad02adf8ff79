"""The driver, which sends the programs of an experiment to real servers and records the answers."""
