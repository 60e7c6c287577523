"""Starting ranks (launching.py) and reading their reports as ncclprobe does."""

from launching import DEADLINE_S, ENDLESS, SHORT, Launcher, by_hand, by_mpirun, by_srun, ended, free_port

from ncclprobe.model.report import Report
from ncclprobe.report import json as as_json

__all__ = [
    "DEADLINE_S", "ENDLESS", "SHORT", "Lab", "by_hand", "by_mpirun", "by_srun", "ended", "findings", "free_port",
]  # fmt: skip


class Lab(Launcher):
    """Starts commands, leaves nothing behind, and reads the report."""

    def report(self) -> Report:
        return as_json.read(str(self.report_path))


def findings(report: Report, check: str) -> list[tuple[str, str]]:
    return [(f.subject, f.message) for v in report.checks if v.id == check for f in v.findings]
