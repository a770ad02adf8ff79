"""Records of requests: any log, trace or export, read into columns by field.

``source`` yields the records of a file, ``layouts`` lists the known formats, ``column_names`` knows
the usual names of columns, and ``columns`` reads a file into ``FileColumns``. ``requests`` removes
records that are no requests and counts whole prompts; ``times`` converts times and finds their
units. All commands that read a log use this package.
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.records.column_names import mapped as mapped
    from fairbench.records.column_names import parse_map as parse_map

__getattr__ = lazy_names(__name__, {"column_names": "mapped parse_map"})
