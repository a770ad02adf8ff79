"""Launchers: the places where the servers of a run are started, one file for each way."""
