"""A report's nodes in a store of reports (``--fleet``): reading their history, and adding the report.

Neither changes a command's verdict on the machine: a store that does not answer is reported, and nothing else changes.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ncclprobe.model.errors import HostError, UsageError
from ncclprobe.model.fleet import History
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace

_LOOK_S, _LEAST_S, _MOST_S = 4.0, 2.0, 5.0


def add_history(snapshots: Sequence[Snapshot], report: Report, path: Path) -> list[Snapshot]:
    """Add to `snapshots` what the store at `path` keeps of each node, including `report`."""
    found = _past(report, path)
    unknown = found if isinstance(found, Absent) else Absent(f"{path} has no history of this node")
    of: Mapping[str, History] = {} if isinstance(found, Absent) else found
    return [replace(each, facts={**each.facts, History: of.get(each.node, unknown)}) for each in snapshots]


def _past(report: Report, path: Path) -> dict[str, History] | Absent:
    from ncclprobe.fleet import child  # what only --fleet needs

    try:
        return child.past(msgspec.json.encode(report), path, _LOOK_S)
    except (UsageError, HostError, UnicodeEncodeError) as error:
        return Absent(str(error))


def keep(report: Report, path: Path, written: str, left_s: float, complain: Callable[[str], None]) -> None:
    """Add a delivered report to the store at `path`; if that fails, `complain`.

    `written`: the file that it was written to, if any. `left_s`: remaining seconds of --timeout.
    """
    from ncclprobe.fleet import child

    source = str(Path(written).absolute()) if written.strip("-") else "--fleet"
    try:
        child.add(msgspec.json.encode(report), path, source, min(max(left_s, _LEAST_S), _MOST_S))
    except (UsageError, HostError, UnicodeEncodeError) as error:
        complain(f"--fleet: this report was not added: {error}")
