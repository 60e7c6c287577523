"""ncclprobe's only access to a machine.

A *question* is a tuple such as ``("read", "/proc/cpuinfo")``, ``("list", "/sys/class/net")``, ``("run", "nvidia-smi",
"-L")`` or ``("nvml", "nvmlDeviceGetName", 0)``. The answer is text, or JSON if it has structure, so that a capture can
be searched and compared with ordinary tools.
"""

from typing import Protocol

Question = tuple[str | int, ...]

WITHHELD = "<value not recorded>"
"""Replaces a value in a configuration file that may not be recorded."""


SAMPLE = "sample"
"""First word of a question for a run's measurement: ``("sample", "paths")``. A machine cannot answer it."""

NAMED: "Question" = (SAMPLE, "named")
"""A machine or job that pasted texts name but do not show: :mod:`.pasted_job`."""
PROBLEMS: "Question" = (SAMPLE, "problems")
"""What is wrong in a pasted script: :mod:`.pasted_scripts`."""
LOG: "Question" = (SAMPLE, "log")
"""That a pasted text is a log: :mod:`.pasted_logs`."""
DROPPED: "Question" = (SAMPLE, "dropped")
"""The counters of a pasted ``ethtool -S`` that count dropped packets, by interface: :mod:`.pasted_ethtool`."""
REDIRECTS: "Question" = (SAMPLE, "acs")
"""The bridges of a pasted ``lspci -vvv`` that redirect, and how many others there are: :mod:`.pasted_lspci`."""
FAULTS: "Question" = (SAMPLE, "faults")
"""What pasted texts state of faults: :mod:`.pasted_faults`."""


class Host(Protocol):
    """Answers questions: a machine, a recording, or a test's dictionary."""

    def ask(self, *question: str | int) -> str:
        """Return the answer as text. Raises the HostError with the reason if there is none."""
        ...
