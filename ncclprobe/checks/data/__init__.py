"""What the nodes of a job see at the paths of --path: data that all must read, folders that checkpoints go to.

Judged by path. Where some nodes differ from the others, they are named; a problem that all nodes have is the job's (a
misspelt path) or the server's.
"""

from typing import get_args

from ncclprobe.facts.data_paths import DataPath, DataPaths, Use
from ncclprobe.model.fleet import Every
from ncclprobe.model.registry import applies
from ncclprobe.model.snapshot import Absent


@applies
def asked(paths: Every[DataPaths | Absent]) -> bool:
    """where --path names what the job reads or writes."""
    return any(not isinstance(each, DataPaths) or each.rows for _, each in paths.items())


@applies
def asked_of_several(paths: Every[DataPaths | Absent]) -> bool:
    """where --path names what several nodes read or write."""
    return len(paths) > 1 and any(not isinstance(each, DataPaths) or each.rows for _, each in paths.items())


def by_path(paths: Every[DataPaths], *uses: Use) -> dict[str, dict[str, DataPath]]:
    """Return each path's rows by node, of these uses; where a path has several, one that is written to."""
    found: dict[str, dict[str, DataPath]] = {}
    for node, each in paths.items():
        for row in each.rows:
            if row.use in (uses or get_args(Use)):
                known = found.setdefault(row.path, {})
                if node not in known or row.use != "read":
                    known[node] = row
    return found
