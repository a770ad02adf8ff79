"""Preble as its authors published it: a router and a local scheduler ([Preble code])."""
