"""Records of requests: logs, traces and exports of any tool, read into columns by field.

Module ``source`` yields the records of a file, and ``log_reader`` reads a file into
``FileColumns``. ``known_formats`` lists the formats, and ``column_names`` lists the usual names of
columns. Module ``requests`` removes records that are not requests and counts the tokens of prompts;
``times`` converts times and finds their units.
"""
