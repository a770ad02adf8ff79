"""Records of requests: any log, trace or export, read into one set of columns.

``source`` yields the records of a file, ``layouts`` lists the known formats, ``names`` knows the
common names of columns, and ``columns`` reads a file into ``Columns`` by field. ``requests`` drops
records that are no requests, and counts prompts whole; ``times`` converts times and decides their
units. Every command that reads a log reads it here.
"""
