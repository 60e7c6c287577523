"""What the checks of data that a job reads must object to, and what they must accept."""

from ncclprobe.checks.data import HUNG, NAMES, NFS, ROW, looking, on_nodes, reading
from ncclprobe.facts.data_paths import Content, Mount, ReadRate
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_DISK = Mount("/", "ext4", "/dev/sda1")
_GONE = replace(ROW, mount=_DISK, look=Absent("/data: not there", "Missing"), content=None, rate=None)
_UNREAD = replace(ROW, rate=Absent("/data: rate: no answer within 10 s", "TimedOut"))


_SLOW = Absent("/data: content: no answer within 10 s", "TimedOut")
_OTHER = replace(NAMES, entries=11, digest="fedcba9876543210")
_LATE, _DENIED = Absent("no time", "OutOfTime"), Absent("permission denied", "Denied")
_DISKS = [Mount(f"/{kind}", kind, "/dev/sda1") for kind in ("xfs", "ext4", "btrfs", "ext3")]
_UNLIKE = [replace(NAMES, entries=n) for n in range(4)]
CASES: Cases = {
    "data.rate": [
        ("FAIL node: /data on n1", on_nodes(replace(ROW, rate=_LATE), _UNREAD)),
        ("UNKNOWN: --timeout left no time to read the path on n0", on_nodes(replace(ROW, rate=_LATE), ROW)),
        ("WARN node: /data on n1; NOTE unknown: /data", reading(900, 200)),
        ("WARN node: /data on n1; NOTE unknown: /data", reading(900, 300, 900, 900, resident=None)),
        ("FAIL fabric: /data on n0 n1", on_nodes(_UNREAD, _UNREAD)),
        ("FAIL node: /data on n1; NOTE unknown: /data", on_nodes(ROW, _UNREAD, ROW)),
        (reading(9000, 3500, 9000, 9000),),  # 64 MiB in 20 ms: too short
        (reading(900),), (Every({**reading(900, 900).by_node, "n2": reading(90, resident=1.0).by_node["n0"]}),),
        (on_nodes(ROW, replace(ROW, mount=_DISK, rate=ReadRate(64 << 20, 0.7, 0.0))),),  # data.file-system says it
        (on_nodes(replace(ROW, rate=ReadRate(why="the files hold 0 bytes"))),),
    ],
    "data.path": [
        ("FAIL node: /data on n0", on_nodes(HUNG, replace(ROW, look=_LATE))),
        ("FAIL node: /data on n1; FAIL node: /data on n2", on_nodes(ROW, _GONE, HUNG)),
        ("FAIL fabric: /data on n0", on_nodes(replace(HUNG, mount=_DENIED))),
        *(("FAIL job: /data on n0", on_nodes(replace(_GONE, look=each)))
            for each in (_DENIED, Absent("I/O error", "Failed"))),
        ("FAIL job: /data on n0", on_nodes(looking(enter=False))), ("FAIL job: /data on n0", on_nodes(_GONE)),
        ("UNKNOWN: --timeout left no time to read the path on n1", on_nodes(ROW, replace(ROW, look=_LATE))),
        ("FAIL fabric: /data on n0 n1", on_nodes(HUNG, HUNG)), (on_nodes(looking(kind="file", enter=False)),),
        ("FAIL node: /data on n1", on_nodes(ROW, looking(read=False))),
        ("FAIL job: /data on n0", on_nodes(replace(looking(kind="other"), content=None, rate=None))),
    ],
    "data.file-system": [
        ("FAIL node: /data on n1 n2 n3 n4", on_nodes(ROW, *(replace(ROW, mount=each) for each in _DISKS))),
        ("FAIL node: /data on n0", on_nodes(replace(ROW, mount=_DISK), ROW, replace(ROW, mount=_DENIED))),
        ("FAIL node: /data on n1", on_nodes(ROW, replace(ROW, mount=_DISK))),
        ("WARN image: /data", on_nodes(ROW, replace(ROW, mount=replace(NFS, source="fs2:/export")))),
        (on_nodes(ROW, _GONE),),  # data.path says it
        (on_nodes(replace(ROW, mount=_DISK), replace(ROW, mount=replace(_DISK, source="/dev/nvme0n1"))),),
    ],
    "data.content": [
        ("FAIL node: /data on n1 n3", on_nodes(*[ROW, replace(ROW, content=_DENIED)] * 2)),
        ("FAIL node: /data on n1", on_nodes(replace(ROW, content=_LATE), replace(ROW, content=_SLOW))),
        ("FAIL node: /data on n0 n1 n2 n3", on_nodes(*(replace(ROW, content=each) for each in _UNLIKE), *[ROW] * 5)),
        ("FAIL node: /data on n2", on_nodes(ROW, ROW, replace(ROW, content=_OTHER))),
        ("FAIL node: /data on n1", on_nodes(ROW, replace(ROW, content=_SLOW))),
        (on_nodes(ROW, _GONE),),  # data.path says it
        (on_nodes(*(replace(ROW, content=Content(each, "", cut=True)) for each in (10_000, 9))),),
    ],
}  # fmt: skip
