"""What the checks of data that a job reads must object to, and what they must accept."""

from ncclprobe.checks.data import _HEALTHY, _HUNG, _NAMES, _NFS, _ROW, _looking, _nodes, _reading
from ncclprobe.facts.data_paths import Content, Mount, ReadRate
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_DISK = Mount("/", "ext4", "/dev/sda1", options=("rw",))
_GONE = replace(_ROW, mount=_DISK, look=Absent("/data: not there", "Missing"), content=None, rate=None)
_UNREAD = replace(_ROW, rate=Absent("/data: rate: no answer within 10 s", "TimedOut"))


CASES = {
    "data.rate": Cases(
        bad=[
            ("WARN node: /data on n1; NOTE unknown: /data", _reading(900, 200)),
            (
                "WARN node: /data on n1; NOTE unknown: /data",
                _reading(900, 300, 900, 900, resident=None),
            ),
            ("FAIL fabric: /data on n0 n1", _nodes(_UNREAD, _UNREAD)),
            ("FAIL node: /data on n1; NOTE unknown: /data", _nodes(_ROW, _UNREAD, _ROW)),
        ],
        good=[
            (_reading(900, 900),),
            (_reading(9000, 3500, 9000, 9000),),  # 64 MiB in 20 ms: too short
            (_reading(900),),
            (Every({**_reading(900, 900).by_node, "n2": _reading(90, resident=1.0).by_node["n0"]}),),
            (_nodes(_ROW, replace(_ROW, mount=_DISK, rate=ReadRate(64 << 20, 0.7, 0.0))),),  # data.file-system says it
            (_nodes(replace(_ROW, rate=ReadRate(why="the files hold 0 bytes"))),),
        ],
    ),
    "data.path": Cases(
        bad=[
            ("FAIL fabric: /data on n0 n1", _nodes(_HUNG, _HUNG)),
            ("FAIL job: /data on n0", _nodes(_GONE)),
            ("FAIL node: /data on n2", _nodes(_ROW, _ROW, _GONE)),
            ("FAIL node: /data on n1", _nodes(_ROW, _looking(read=False))),
            ("FAIL job: /data on n0", _nodes(replace(_looking(kind="other"), content=None, rate=None))),
        ],
        good=[
            (_HEALTHY,),
            (_nodes(_looking(kind="file", enter=False)),),
        ],
    ),
    "data.file-system": Cases(
        bad=[
            ("FAIL node: /data on n1", _nodes(_ROW, replace(_ROW, mount=_DISK))),
            ("WARN image: /data", _nodes(_ROW, replace(_ROW, mount=replace(_NFS, options=("hard", "ro", "vers=4.2"))))),
            (
                "WARN image: /data",
                _nodes(_ROW, replace(_ROW, mount=replace(_NFS, options=("acdirmax=600", "hard", "rw", "vers=4.2")))),
            ),
        ],
        good=[
            (_nodes(_ROW, _GONE),),  # data.path says it
            (_nodes(replace(_ROW, mount=_DISK), replace(_ROW, mount=replace(_DISK, source="/dev/nvme0n1"))),),
            (_nodes(_ROW, replace(_ROW, mount=replace(_NFS, options=("hard", "rw", "timeo=600", "vers=4.2")))),),
        ],
    ),
    "data.content": Cases(
        bad=[
            (
                "FAIL node: /data on n2",
                _nodes(_ROW, _ROW, replace(_ROW, content=replace(_NAMES, entries=11, digest="fedcba9876543210"))),
            ),
            (
                "FAIL node: /data on n1",
                _nodes(_ROW, replace(_ROW, content=Absent("/data: content: no answer within 10 s", "TimedOut"))),
            ),
        ],
        good=[
            (_nodes(_ROW, _GONE),),  # data.path says it
            (
                _nodes(
                    replace(_ROW, content=Content(10_000, "", cut=True)),
                    replace(_ROW, content=Content(9, "", cut=True)),
                ),
            ),
        ],
    ),
    "data.owner": Cases(
        bad=[("WARN node: /data", _nodes(_ROW, _looking(uid=65534, gid=65534)))],
        good=[(_nodes(_ROW, replace(_looking(uid=3), mount=_DISK)),)],
    ),
}
