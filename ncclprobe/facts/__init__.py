"""Facts about one machine: one module per source, each with its types, parser and collector.

Reading and parsing are separate: a collector asks the host, and a pure function builds the fact. A fact that could not
be learned is :class:`ncclprobe.model.Absent`; "known to be empty" is a fact.
"""

SOURCE = "machine"
