"""Reading the kernel's log: records, the journal in its place, and being shown nothing."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from ncclprobe.host import live
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Failed, HostError, Missing
from tests.each_row import each_row

KMSG = "6,1,2500000,-;NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=my prog, Ch 1\n SUBSYSTEM=pci\n"


def ring(monkeypatch: pytest.MonkeyPatch, *records: bytes | OSError) -> None:
    """A ring buffer with these records, or refusals to read one."""
    left = list(records)

    def read(_fd: int, _nbytes: int) -> bytes:
        if not left:
            raise BlockingIOError
        record = left.pop(0)
        if isinstance(record, OSError):
            raise record
        return record

    monkeypatch.setattr(live.os, "open", lambda *_: os.dup(0))
    monkeypatch.setattr(live.os, "read", read)


def no_ring(monkeypatch: pytest.MonkeyPatch, error: OSError, journal: str | HostError) -> None:
    def refuse(*_: object) -> int:
        raise error

    def run(_argv: Sequence[str], _patience_s: float) -> str:
        if isinstance(journal, HostError):
            raise journal
        return journal

    monkeypatch.setattr(live.os, "open", refuse)
    monkeypatch.setattr(live, "run", run)


def test_wanted_records_come_with_their_time_and_without_names_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    ring(monkeypatch, b"5,0,0,-;Linux version 6.1\n", b"garbage", KMSG.encode())
    assert live.matching("Xid|31") == {
        "source": "/dev/kmsg",
        "lines": [(2.5, "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=-, Ch 1")],
        "dropped": 0,
        "oldest_s": 0.0,
    }


def test_a_record_of_several_lines_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ring(monkeypatch, b"3,9,1000000,-;NVRM: The GPU\\x0a  NVRM: fallen off the bus\n")
    assert live.matching("GPU.*fallen")["lines"] == [(1.0, "NVRM: The GPU   NVRM: fallen off the bus")]


def test_a_ring_that_turns_while_it_is_read_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ring(monkeypatch, BrokenPipeError(), b"6,5,1000000,-;x\n")
    seen = live.matching("x")
    assert (len(seen["lines"]), seen["oldest_s"]) == (1, 1.0)


def test_only_the_newest_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "KERNEL_LINES", 2)
    ring(monkeypatch, *(f"6,{n},{n}000000,-;x\n".encode() for n in range(5)))
    seen = live.matching("x")
    assert ([at for at, _ in seen["lines"]], seen["dropped"]) == ([3.0, 4.0], 3)


def test_the_journal_serves_where_the_ring_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[    0.000000] n0 kernel: Linux version 6.1\n[   12.500000] n0 kernel: mlx5_core x: Link down\nodd line\n"
    no_ring(monkeypatch, PermissionError(1, "no"), text)
    seen = live.matching("mlx5")
    assert (seen["source"], seen["lines"]) == ("journalctl -k", [(12.5, "mlx5_core x: Link down")])


@each_row(
    ("error", "journal", "kind"),
    [
        (PermissionError(1, "no"), "", Denied),
        (PermissionError(1, "no"), Missing("journalctl: not there"), Denied),
        (FileNotFoundError(2, "no"), Missing("journalctl: not there"), Missing),
        (FileNotFoundError(2, "no"), Failed("journalctl: exit code 1: insufficient permissions"), Denied),
    ],
)
def test_to_be_shown_nothing_is_not_a_clean_log(
    monkeypatch: pytest.MonkeyPatch, error: OSError, journal: str | HostError, kind: type[HostError]
) -> None:
    no_ring(monkeypatch, error, journal)
    with pytest.raises(kind):
        live.matching("x")


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/kmsg").exists(), reason="needs root and a kernel log")
def test_this_machines_log_is_read_without_waiting_for_more() -> None:
    seen = live.matching("Linux version")
    assert seen["source"] == "/dev/kmsg"
    assert seen["oldest_s"] >= 0
