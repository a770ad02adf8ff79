"""Traces: recorded traffic, read into one model from every format.

``rows`` has the model of a request, ``table`` the model of a file of requests; ``formats/`` has a
file for each format, and ``read`` chooses a format and reads the file. To add a format, write its
file as ``format`` describes, and add a line to ``formats/__init__.py``.
"""
