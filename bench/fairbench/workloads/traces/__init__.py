"""Traces: recorded traffic, read into one model from every format.

``rows`` has the model of a request, ``table`` that of a file of them; ``formats/`` has a file for
each format, ``read`` chooses one and reads. To add a format: write its file, as ``format`` says,
and add a line to ``formats/__init__.py``.
"""
