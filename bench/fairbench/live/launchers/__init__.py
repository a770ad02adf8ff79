"""Launchers: the places where the servers of a run are started, one file for each way."""

DEFAULT = "ssh -o BatchMode=yes {host}"  # the command that runs words on a host
