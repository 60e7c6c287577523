"""What a machine says of itself: one module per source, each with its types, its parser and its collector.

Reading and parsing are apart: a collector asks the host, a pure function makes the fact. What could not be
learned becomes :class:`ncclprobe.model.Absent`; "known to be empty" is a fact.
"""

SOURCE = "machine"
