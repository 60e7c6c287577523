"""How fast each path of --path was from this node: samples of --path-rates, which the cluster part measures."""

from typing import Annotated

import msgspec

from ncclprobe import bounds
from ncclprobe.facts.data_paths import AskedPath, DataPaths, Mount, Use
from ncclprobe.facts.reach import sample
from ncclprobe.host import Host
from ncclprobe.model.path_rates import PathRate, RateKind
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import Struct, replace

KINDS_OF_USE: dict[Use, tuple[RateKind, ...]] = {
    "read": ("read", "random", "open"),
    "write": ("write",),
    "checkpoint": ("write", "read"),
}
"""What is measured at a path by its use: a checkpoint is also read, at a restart."""


class DataRates(Struct, frozen=True):
    """What was measured from this node, in the order in which it was."""

    rows: Annotated[tuple[PathRate, ...], msgspec.Meta(max_length=bounds.PATH_RATES)] = ()


@collector
def data_rates(host: Host, paths: DataPaths) -> DataRates:
    """Read how fast the paths of --path were from this node, each with the file system that it is on."""
    mounts = {row.path: str(row.mount) for row in paths.rows if isinstance(row.mount, Mount)}
    rows = sample(host, "data_rates", DataRates).rows
    return DataRates(tuple(replace(row, file_system=mounts.get(row.path, "")) for row in rows))


def rated(snapshot: Snapshot) -> tuple[AskedPath, ...]:
    """Return the paths of which rates were asked, as far as this node could look at them."""
    seen = snapshot.facts.get(DataPaths)
    if not isinstance(seen, DataPaths) or not seen.rate_bytes:
        return ()
    return tuple(AskedPath(row.path, row.use) for row in seen.rows if not isinstance(row.look, Absent))


def rate_bytes(snapshot: Snapshot) -> int:
    """Return how many bytes one measurement may move; 0: none was asked for."""
    seen = snapshot.facts.get(DataPaths)
    return seen.rate_bytes if isinstance(seen, DataPaths) else 0
