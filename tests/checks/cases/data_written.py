"""What the checks of data that a job writes must object to, and what they must accept."""

from ncclprobe.checks.data.seen import _ASKED, _FULL, _writes, _wrote
from ncclprobe.model.snapshot import Every
from tests.checks.cases import Cases

CASES = {
    "data.write": Cases(
        bad=[("FAIL node: /out on n0", Every({"n0": _wrote(0, failed="mkdir", why="Permission denied")}), _ASKED)],
        good=[
            (_writes(), _ASKED),
            (_writes("no-folder"), _ASKED),  # data.shared says it
        ],
    ),
    "data.shared": Cases(
        bad=[
            ("FAIL node: /out on n1", _writes("no-folder"), _ASKED),
            ("FAIL job: /out on n0 n1 n2", _writes("no-folder", by=(0, 1, 2)), _ASKED),
            ("FAIL node: /out on n1", _writes("other", 8.0, of=0), _ASKED),
            ("FAIL node: /out on n1", _writes("hung", 18.0), _ASKED),
        ],
        good=[(_FULL, _ASKED)],
    ),
    "data.checkpoint": Cases(
        bad=[
            ("FAIL node: /out on n1", _writes("no-file", 8.0, name="shard-2"), _ASKED),
            ("FAIL node: /out on n0 n1", _writes("other", 8.0, name="shard-2", by=(0, 1), of=2), _ASKED),
        ],
        good=[(_writes("no-folder"), _ASKED)],
    ),
}
