"""What the machine is asked for: the kernel's log or the journal in its place, binary files, folders, device nodes."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.facts.pci import config_space
from ncclprobe.host import live
from ncclprobe.host.live import LiveHost
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Failed, HostError, Missing
from tests.each_row import each_row

KMSG = "6,1,2500000,-;NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=my prog, Ch 1\n SUBSYSTEM=pci\n"
LINES_OF_FIVE = [f"6,{n},{n}000000,-;x\n".encode() for n in range(5)]
XID = (2.5, "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=-, Ch 1")


@each_row(
    ("records", "pattern", "lines", "rest"),
    [
        ([b"5,0,0,-;Linux version 6.1\n", b"garbage", KMSG.encode()], "Xid|31", [XID], (0, 0.0)),
        ([b"3,9,1000000,-;NVRM: The GPU\\x0a  NVRM: fallen off the bus\n"], "GPU.*fallen",  # of several lines
         [(1.0, "NVRM: The GPU   NVRM: fallen off the bus")], (0, 1.0)),
        ([BrokenPipeError(), b"6,5,1000000,-;x\n"], "x", [(1.0, "x")], (0, 1.0)),  # it turned while it was read
        ([b"6,5,x,-;x\n", b"6,5;x\n", b"6,5,7;x\n"], "x", [(7e-6, "x")], (0, 7e-6)),
        (LINES_OF_FIVE, "x", [(3.0, "x"), (4.0, "x")], (3, 0.0)),  # the newest are kept
        (LINES_OF_FIVE[:2], "x", [(0.0, "x"), (1.0, "x")], (0, 0.0)), ([], "x", [], (0, 0.0)),
    ],
)  # fmt: skip
def test_wanted_records_come_with_their_time_and_without_names_of_programs(
    records: list[bytes | OSError], pattern: str, lines: list[object], rest: tuple[int, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    left = list(records)

    def read(_fd: int, _nbytes: int) -> bytes:
        if not left:
            raise BlockingIOError
        record = left.pop(0)
        if isinstance(record, OSError):
            raise record
        return record

    monkeypatch.setattr(bounds, "KERNEL_LINES", 2)
    monkeypatch.setattr(live.os, "open", lambda *_: os.dup(0))
    monkeypatch.setattr(live.os, "read", read)
    assert live.matching(pattern) == {
        "source": "/dev/kmsg", "lines": lines, "dropped": rest[0], "oldest_s": rest[1]
    }  # fmt: skip


NO, GONE, NO_PROGRAM = PermissionError(1, "no"), FileNotFoundError(2, "no"), Missing("journalctl: not there")
JOURNAL = "[    0.500000] n0 kernel: Linux version 6.1\n[   12.500000] n0 kernel: mlx5_core x: Link down\nodd line\n"


@each_row(
    ("error", "journal", "found"),
    [
        (NO, JOURNAL, [(12.5, "mlx5_core x: Link down")]), (GONE, JOURNAL, [(12.5, "mlx5_core x: Link down")]),
        (NO, "", Denied), (NO, NO_PROGRAM, Denied), (GONE, NO_PROGRAM, Missing),
        (GONE, Failed("journalctl: exit code 1: insufficient permissions"), Denied),
    ],
)  # fmt: skip
def test_the_journal_serves_where_the_ring_is_closed_and_to_be_shown_nothing_is_not_a_clean_log(
    monkeypatch: pytest.MonkeyPatch, error: OSError, journal: str | HostError, found: list[object] | type[HostError]
) -> None:
    def refuse(*_: object) -> int:
        raise error

    def run(_argv: Sequence[str], _patience_s: float) -> str:
        if isinstance(journal, HostError):
            raise journal
        return journal

    monkeypatch.setattr(live.os, "open", refuse)
    monkeypatch.setattr(live, "run", run)
    if isinstance(found, list):
        seen = live.matching("mlx5")
        assert (seen["source"], seen["lines"], seen["oldest_s"]) == ("journalctl -k", found, 0.5)
    else:
        with pytest.raises(found):
            live.matching("x")


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/kmsg").exists(), reason="needs root and a kernel log")
def test_this_machines_log_is_read_without_waiting_for_more() -> None:
    seen = live.matching("Linux version")
    assert (seen["source"], seen["oldest_s"] >= 0) == ("/dev/kmsg", True)


@pytest.fixture
def host() -> LiveHost:
    return LiveHost((), lambda name: False)


def test_a_binary_file_is_its_length_and_the_rows_that_are_not_zero(host: LiveHost, tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"\xde\x10" + bytes(14) + bytes(16) + b"\x01")
    said = json.loads(host.ask("bytes", str(tmp_path / "config")))
    assert said == {"length": 33, "rows": {"0x000": "de10" + "00" * 14, "0x020": "01"}}


@given(st.binary(max_size=4096))
def test_the_config_space_that_was_read_is_the_one_that_is_parsed(
    tmp_path_factory: pytest.TempPathFactory, config: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "config"
    path.write_bytes(config)
    assert config_space(LiveHost((), lambda name: False).ask("bytes", str(path))) == config


def test_a_folder_is_its_files_without_those_that_say_nothing(host: LiveHost, tmp_path: Path) -> None:
    for name, text in (("0", "fe80\n"), ("1", "0000\n"), ("2", "0000\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    assert json.loads(host.ask("files", str(tmp_path), "0000")) == {"0": "fe80"}
    assert json.loads(host.ask("files", str(tmp_path))) == {"0": "fe80", "1": "0000", "2": "0000"}
    assert host.ask("counters", str(tmp_path), 2) == host.ask("files", str(tmp_path))
    assert json.loads(host.ask("among", str(tmp_path), "2", "x", "0")) == ["2", "0"]
    said = json.loads(host.ask("files", "/proc/self"))  # /proc/self/mem cannot be read from its start, by anybody
    assert (said["mem"], bool(said["comm"])) == (None, True)
    for kind in ("files", "bytes", "open", "among"):
        with pytest.raises(Missing):
            host.ask(kind, str(tmp_path / "absent"))


def test_a_node_opens_or_is_denied(host: LiveHost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.ask("open", "/dev/null") == "true"

    def deny(path: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")  # what a device cgroup says

    monkeypatch.setattr("os.open", deny)
    with pytest.raises(Denied):
        host.ask("open", "/dev/null")
