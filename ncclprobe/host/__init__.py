"""The only access of ncclprobe to a machine.

A *question* is a tuple such as ``("read", "/proc/cpuinfo")``, ``("list", "/sys/class/net")``,
``("run", "nvidia-smi", "-L")`` or ``("nvml", "nvmlDeviceGetName", 0)``. The answer is text, JSON if it has
structure, so that a capture can be searched and compared with ordinary tools.
"""

from typing import Protocol

Question = tuple[str | int, ...]

WITHHELD = "<value not recorded>"
"""Stands in a configuration file for a value that may not be recorded."""


SAMPLE = "sample"
"""First word of a question for what a run measured: ``("sample", "paths")``. No machine knows it by itself."""

NAMED: "Question" = (SAMPLE, "named")
"""What pasted texts name of a machine and a job, and do not show: :mod:`.pasted_job`."""


class Host(Protocol):
    """Answers questions: a machine, a recording of one, or a test's own dictionary."""

    def ask(self, *question: str | int) -> str:
        """Return the answer, as text. Raises the HostError that gives the reason if there is none."""
        ...
