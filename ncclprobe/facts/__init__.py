"""A machine's facts: one module per source, each with its types, its parser and its collector.

Reading and parsing are apart: a collector asks the host, a pure function makes the fact. Facts that could not be
learned become :class:`ncclprobe.model.Absent`; "known to be empty" is a fact.
"""

SOURCE = "machine"
