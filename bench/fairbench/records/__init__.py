"""Records of requests: logs, traces and exports of any tool, read into columns by field.

Module ``source`` yields the records of a file, and ``log_reader`` reads a file into
``FileColumns``. ``layouts`` lists the known formats, and ``column_names`` lists the usual names of
columns. Module ``requests`` removes records that are not requests and counts the tokens of prompts;
``times`` converts times and finds their units.
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.records.column_names import mapped as mapped
    from fairbench.records.column_names import parse_map as parse_map

__getattr__ = lazy_names(__name__, {"column_names": "mapped parse_map"})
