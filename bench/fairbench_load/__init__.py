"""Runs on real servers: server processes, kinds of servers (backends), and the driver.

README.md describes the modules of this package.
"""
