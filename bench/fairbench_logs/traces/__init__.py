"""Traces: recorded traffic of any format, read into the core's table of a trace.

Module ``read`` detects the format of a file and reads the file; ``requests`` converts recorded
requests to the table, and ``change`` cuts and changes tables. To add a format whose records are
programs, write a class like ``weka.Weka`` in a new file, and add an object of the class to
``read.PROGRAMS``.
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_logs.traces.change import anonymized as anonymized
    from fairbench_logs.traces.change import combined as combined
    from fairbench_logs.traces.change import cut_trace as cut_trace
    from fairbench_logs.traces.change import scaled as scaled
    from fairbench_logs.traces.change import write_trace as write_trace
    from fairbench_logs.traces.facts import facts_of_table as facts_of_table
    from fairbench_logs.traces.facts import inspected as inspected
    from fairbench_logs.traces.facts import inspected_title as inspected_title
    from fairbench_logs.traces.read import read_trace as read_trace

__getattr__ = lazy_names(
    __name__,
    {
        "change": "anonymized combined cut_trace scaled write_trace",
        "facts": "facts_of_table inspected inspected_title",
        "read": "read_trace",
    },
)
