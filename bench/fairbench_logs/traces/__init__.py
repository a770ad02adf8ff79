"""Traces: recorded traffic of any format, read into the core's table of a trace.

Module ``read`` detects the format of a file and reads the file; ``requests`` converts recorded
requests to the table, and ``change`` cuts and changes tables. To add a format whose records are
programs, write a class like ``weka.Weka`` in a new file, and add an object of the class to
``read.PROGRAMS``.
"""
