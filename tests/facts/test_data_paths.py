"""Data paths: which mount a path is on, and what a node says of each."""

import json
from typing import Any

import pytest

from ncclprobe.facts.data_paths import DataPaths, Look, ReadRate, data_paths, mount_of, parse_mounts
from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import HostError, NotCaptured, ParseError, TimedOut
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

MOUNTS = """\
23 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
60 23 0:50 / /data rw,nosuid shared:3 - nfs4 fs1:/export rw,vers=4.2,hard,clientaddr=10.0.0.7
61 23 0:51 /sub /my\\040data ro,relatime - lustre 10.0.0.1@tcp:/fsx rw,flock
62 60 0:52 / /data/cache rw - tmpfs tmpfs rw,size=64k
63 23 0:53 / /data rw - nfs4 fs2:/export rw,vers=4.2,hard
"""
LOOK = {
    "kind": "folder", "real": "/data/set", "uid": 0, "gid": 0, "mode": "0755", "user": 0, "nbytes": 4096,
    "read": True, "enter": True,
}  # fmt: skip
CONTENT = {"entries": 2, "digest": "ab", "cut": False}
RATE = {"nbytes": 1 << 20, "seconds": 0.01, "resident": 0.0}


def asking(*paths: str, **answers: Any) -> Replay:
    """A node whose command line names `paths`. `answers` to what is asked of /link."""
    asked = {"paths": paths}
    said: dict[Any, str | HostError] = {
        ("sample", "asked_paths"): json.dumps(asked),
        ("read", "/proc/self/mountinfo"): MOUNTS,
    }
    for what, answer in answers.items():
        said["data", what, "/link"] = answer if isinstance(answer, HostError) else json.dumps(answer)
    return Replay(said, "n0")


@each_row(
    ("path", "source"),
    [
        ("/data/set", "fs2:/export"),  # mounted over the other
        ("/data", "fs2:/export"),
        ("/database", "/dev/sda1"),
        ("/data/cache/x", "tmpfs"),
        ("/my data/x", "10.0.0.1@tcp:/fsx"),
        ("/", "/dev/sda1"),
    ],
)
def test_a_path_is_on_the_longest_mount_point_above_it(path: str, source: str) -> None:
    assert mount_of(path, parse_mounts(MOUNTS)).source == source


def test_a_mount_is_local_or_a_servers() -> None:
    every = {mount.source: mount for mount in parse_mounts(MOUNTS)}
    assert (every["tmpfs"].is_local, every["fs1:/export"].is_remote) == (True, True)


@each_row("text", ["23 1 8:1 / /", "a b - c", "23 1 8:1 / / rw - ext4\n"])
def test_a_line_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_mounts(text)


def test_without_a_path_nothing_is_asked() -> None:
    assert data_paths.run(Replay({}, "n0")) == DataPaths()


def test_a_link_is_judged_by_where_it_leads() -> None:
    (row,) = data_paths.run(asking("/link", stat=LOOK, content=CONTENT, rate=RATE)).rows
    assert isinstance(row.look, Look)
    assert not isinstance(row.mount, Absent)
    assert row.mount.source == "fs2:/export"
    assert row.rate == ReadRate(1 << 20, 0.01, 0.0)


def test_a_path_that_does_not_answer_is_named_with_its_mount_and_not_asked_again() -> None:
    (row,) = data_paths.run(asking("/link", stat=TimedOut("late"), content=NotCaptured("asked again"))).rows
    assert isinstance(row.look, Absent)
    assert (row.look.refused, row.content, row.rate) == ("TimedOut", None, None)
    assert not isinstance(row.mount, Absent)


@each_row("stat", [{**LOOK, "kind": "fifo"}, {**LOOK, "uid": "0"}, [], {}])
def test_an_answer_that_is_none_is_unknown(stat: Any) -> None:
    (row,) = data_paths.run(asking("/link", stat=stat)).rows
    assert isinstance(row.look, Absent)
    assert row.look.refused == "ParseError"


def test_more_paths_than_are_looked_at_are_refused() -> None:
    with pytest.raises(ParseError):
        data_paths.run(asking(*(f"/{number}" for number in range(17))))


def test_what_is_neither_a_file_nor_a_folder_is_not_read() -> None:
    (row,) = data_paths.run(asking("/link", stat={**LOOK, "kind": "other"}, content=NotCaptured("asked"))).rows
    assert (row.content, row.rate) == (None, None)
