"""What the checks of data that a job reads must object to, and what they must accept."""

from ncclprobe.checks.data.rates import _ASKED, _expecting, _rates
from ncclprobe.checks.data.seen import _FILLED, _FOLDER, _HEALTHY, _HUNG, _NAMES, _NFS, _ROW, _looking, _nodes
from ncclprobe.facts.data_paths import Content, DiskQuota, Mount
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_DISK = Mount("/", "ext4", "/dev/sda1", options=("rw",))
_GONE = replace(_ROW, mount=_DISK, look=Absent("/data: not there", "Missing"), content=None)


CASES = {
    "data.rate": Cases(
        bad=[
            ("WARN node: /data on n1; NOTE unknown: /data", _rates(900, 200), _ASKED),
            ("WARN node: /data on n1; NOTE unknown: /data", _rates(900, 300, 900, 900, resident=None), _ASKED),
            (
                "FAIL fabric: /data on n0 n1",
                _rates(900, 900, failed=True, why="/data: rate: no answer within 11 s"),
                _ASKED,
            ),
        ],
        good=[
            (_rates(900, 900), _ASKED),
            (_rates(9000, 3500, 9000, 9000), _ASKED),  # 64 MiB in 20 ms: too short
            (_rates(900), _ASKED),
            (Every({**_rates(900, 900).by_node, "n2": _rates(90, resident=1.0).by_node["n0"]}), _ASKED),
        ],
    ),
    "data.baseline": Cases(
        bad=[
            ("WARN fabric: /data on n0 n1", _rates(600, 600), _ASKED, _expecting(900)),
            ("WARN node: /data on n0", _rates(90), _ASKED, _expecting(900)),
            ("WARN fabric: /data on n0 n1", _rates(900, 900), _ASKED, _expecting(2000, together=True, at_once=2)),
        ],
        good=[(_rates(900, 800), _ASKED, _expecting(100))],
    ),
    "data.path": Cases(
        bad=[
            ("FAIL fabric: /data on n0 n1", _nodes(_HUNG, _HUNG)),
            ("FAIL job: /data on n0", _nodes(_GONE)),
            ("FAIL node: /data on n2", _nodes(_ROW, _ROW, _GONE)),
            ("FAIL node: /data on n1", _nodes(_ROW, _looking(read=False))),
            ("FAIL job: /data on n0", _nodes(replace(_looking(write=False), use="write", content=None))),
            ("FAIL job: /data on n0", _nodes(replace(_looking(kind="file"), use="checkpoint", content=None))),
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
            (_nodes(_ROW, _looking(mtime_s=1.6e9)),),  # a copy
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
    "data.space": Cases(
        bad=[
            ("FAIL job: /data on n0", _nodes(_FILLED)),
            ("WARN job: /data on n0", _nodes(replace(_FILLED, look=replace(_FOLDER, available_bytes=1 << 30)))),
            (
                "FAIL job: /data on n0",
                _nodes(replace(_FILLED, look=replace(_FOLDER, quotas=(DiskQuota("user", 1 << 30, 1 << 30),)))),
            ),
            (
                "FAIL job: /data on n0",
                _nodes(replace(_FILLED, look=replace(_FOLDER, quotas=(DiskQuota("group", 0, 0, 1000, 1000),)))),
            ),
            (
                "FAIL job: /data on n0",
                _nodes(
                    replace(_FILLED, look=replace(_FOLDER, quotas=(DiskQuota("user", 1 << 40, (1 << 40) - (1 << 30)),)))
                ),
            ),
        ],
        good=[
            (_HEALTHY,),
            (_nodes(_looking(available_bytes=0)),),
            (_nodes(replace(_FILLED, look=replace(_FOLDER, quotas=(DiskQuota("user", 1 << 40, 1 << 30),)))),),
        ],
    ),
}
