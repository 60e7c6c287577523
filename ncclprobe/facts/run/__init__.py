"""A measuring run's samples: one module per kind of sample, each a fact type and its collector.

These facts belong to no node. They come from the run's own log (:mod:`ncclprobe.host.run_log`), while it is written or
when it is read back, and contain no verdict.
"""

SOURCE = "run"
