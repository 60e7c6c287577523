"""What the machine is asked for: the kernel's log or the journal in its place, binary files, folders, device nodes."""

import json
import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.facts.pci import config_space
from ncclprobe.host import live
from ncclprobe.host.distributions import versions
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
        ([b"6,1,1000000,-;x\n"], "6,1", [], (0, 1.0)),  # of the record, not of its message
        ([b"6,5,x,-;x\n", b"6,5;x\n", b"6,5,7;x\n"], "x", [(7e-6, "x")], (0, 7e-6)),
        (LINES_OF_FIVE, "x", [(3.0, "x"), (4.0, "x")], (3, 0.0)),  # the newest are kept
        (LINES_OF_FIVE[:2], "x", [(0.0, "x"), (1.0, "x")], (0, 0.0)), ([], "x", [], (0, 0.0)),
    ])  # fmt: skip
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
        "source": "/dev/kmsg", "lines": lines, "dropped": rest[0], "oldest_s": rest[1]}  # fmt: skip


TREES = (("/no", "/no/stat", ()), ("/dev", "/dev/null", ("/dev/shm", "/dev/no")))
SHOW = "start the container with the machine's {0} (docker run -v {0}:{0}:ro)"
MOUNTED = f"another file system is mounted over /dev/shm; {SHOW.format('/dev')}"
NO, GONE, NO_PROGRAM = PermissionError(1, "no"), FileNotFoundError(2, "no"), Missing("journalctl: not there")
JOURNAL = "[    0.500000] n0 kernel: Linux version 6.1\n[   12.500000] n0 kernel: mlx5_core x: Link down\nodd line\n"


@each_row(
    ("error", "journal", "found"),
    [
        (NO, JOURNAL, [(12.5, "mlx5_core x: Link down")]), (GONE, JOURNAL, [(12.5, "mlx5_core x: Link down")]),
        (NO, "", Denied), (NO, NO_PROGRAM, Denied), (GONE, NO_PROGRAM, Missing),
        (GONE, Failed("journalctl: exit code 1: insufficient permissions"), Denied),
    ])  # fmt: skip
def test_the_journal_serves_where_the_ring_is_closed_and_to_be_shown_nothing_is_not_a_clean_log(
    monkeypatch: pytest.MonkeyPatch, error: OSError, journal: str | HostError, found: list[object] | type[HostError]
) -> None:
    def refuse(*_: object) -> int:
        raise error

    def run(argv: Sequence[str], patience_s: float) -> str:
        assert (" ".join(argv), patience_s) == ("journalctl -k -o short-monotonic --no-pager -q", 10)
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


@given(st.binary(max_size=4096) | st.binary(min_size=1).map(lambda data: data + bytes(40) + data))
def test_the_config_space_that_was_read_is_the_one_that_is_parsed(
    tmp_path_factory: pytest.TempPathFactory, config: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "config"
    path.write_bytes(config)
    said = LiveHost((), lambda name: False).ask("bytes", str(path))
    assert config_space(said) == config
    assert all(bytes.fromhex(row).strip(b"\0") for row in json.loads(said)["rows"].values()), (
        "rows of zeros are left out"
    )


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


def test_each_source_answers_what_is_there(host: LiveHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, own = tmp_path / "f", {name: name for name in ("ab", "a")}
    said = {"a": "x" * 200, "b": "x" * 201, "c": {"d": 7}, "e": 1.5, "f": ["b"]}
    file.write_text(json.dumps(said))
    os.utime(file, (0, live.time.time() - 100))
    seen = json.loads(host.ask("stat", str(file)))
    there = file.stat()
    assert (seen["device"], seen["bytes"], seen["mine"], 100 <= seen["age_s"] < 160) == (
        there.st_dev, there.st_size, True, True)  # fmt: skip
    keys = ("a", "b", "c.d", "e", "f", "c", "a.more", "g")
    assert json.loads(host.ask("json", str(file), *keys)) == {"a": said["a"], "c.d": 7}
    file.write_text("[1]")
    assert host.ask("json", str(file), "a") == "{}"
    pool = [(name.encode().ljust(512, b"\0"), (value * 300).encode().ljust(2048, b"\0")) for name, value in own.items()]
    file.write_bytes(b"".join(key + value for key, value in pool))
    assert (host.ask("kvp", str(file), "a"), host.ask("kvp", str(file), "ab")) == ("a" * 200, "ab" * 100)
    monkeypatch.setattr(bounds, "ANSWER_BYTES", (64 << 10) + 1)
    file.write_text("x" * 200_000)
    assert len(host.ask("read", str(file))) == 128 << 10
    names = os.uname()
    assert json.loads(host.ask("uname")) == {
        "system": names.sysname, "release": names.release, "version": names.version, "machine": names.machine,
        "hostname": names.nodename}  # fmt: skip
    assert host.ask("home") == pwd.getpwuid(os.getuid()).pw_dir
    own_addresses = ["127.0.0.1", *["::1"] * Path("/proc/net/if_inet6").exists()]
    assert [host.ask("route", address) for address in own_addresses] == own_addresses
    assert host.ask("open", "/dev/null") == "true"
    (tmp_path / "own").symlink_to("/nowhere")
    assert host.ask("link", str(tmp_path / "own")) == "/nowhere"
    assert json.loads(host.ask("psutil", "net_if_addrs"))["lo"][0] == {
        "family": 2, "address": "127.0.0.1", "netmask": "255.0.0.0", "broadcast": None, "ptp": None}  # fmt: skip
    begun = live.time.monotonic()
    assert (host.ask("wait", "0.05"), live.time.monotonic() - begun >= 0.05) == ("", True)
    for name in ("msgspec-9.1-py3.10.egg-info", "Nvidia_ML_py-12.5.dist-info", "torch-x"):
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "path", ["/nowhere", str(tmp_path), *sys.path])
    assert versions({"msgspec", "nvidia-ml-py", "torchx"}) == {"msgspec": "9.1", "nvidia-ml-py": "12.5"}


@each_row(
    ("name", "answer", "question", "said"),
    [
        ("os.statvfs", SimpleNamespace(f_blocks=10, f_frsize=4096, f_bavail=3, f_bfree=5, f_bsize=1), ("statvfs", "/"),
         {"total": 40960, "available": 12288}),
        ("resource.getrlimit", (5, live.resource.RLIM_INFINITY), ("rlimit", "RLIMIT_NOFILE"), [5, None]),
        ("os.access", lambda _path, how: how == os.R_OK, ("access", "/"), {"read": True, "write": False}),
        ("os.access", lambda _path, how: how == os.W_OK, ("access", "/"), {"read": False, "write": True}),
        ("os.getuid", 4294967290, ("home",), "Missing: user 4294967290: no entry in the password file"),
        ("_read", PermissionError(), ("mapped", "/x/"), {"paths": [], "hidden": 2}),
        ("_read", FileNotFoundError(), ("mapped", "/x/"), {"paths": [], "hidden": 0}),
        ("_read", "0 /x/a\n1 /x/b.c d\n2 /xy\n", ("mapped", "/x/"), {"paths": ["/x/a", "/x/b.c"], "hidden": 0}),
        ("os.geteuid", 4294967290, ("stat", "/proc/1"), False),
        ("os.open", PermissionError(1, "no"), ("open", "/dev/null"), "Denied: open /dev/null: no"),
        ("os.open", 9999, ("open", "/dev/null"), "Failed: open /dev/null: Bad file descriptor"),
        *(("importlib.util.find_spec", spec, ("module", "x"), "Missing: Python module x: not installed")
          for spec in (None, SimpleNamespace(origin=None))),
        ("_KERNEL_TREES", (("/proc", "/no", ()),), ("list", "/proc/self", "stat"), ["stat"]),
        ("_KERNEL_TREES", TREES, ("list", "/dev", "no-*"), []),
        ("_KERNEL_TREES", TREES, ("read", "/dev/pts/no"), "Missing: read /dev/pts/no: not there"),
        ("_KERNEL_TREES", TREES, ("list", "/dev/shm", "no-*"), f"Failed: list /dev/shm: {MOUNTED}"),
        ("_KERNEL_TREES", TREES, ("read", "/dev/shm/no"), f"Failed: read /dev/shm/no: {MOUNTED}"),
        ("_KERNEL_TREES", TREES, ("read", "/dev/no"), "Missing: read /dev/no: not there"),
        ("_KERNEL_TREES", TREES, ("read", "/no/no"),
         f"Failed: read /no/no: /no is hidden from this process; {SHOW.format('/no')}"),
        ("_KERNEL_TREES", TREES, ("read", "/nowhere"), "Missing: read /nowhere: not there"),
    ])  # fmt: skip
def test_what_the_system_says_is_passed_on(
    host: LiveHost, name: str, answer: object, question: tuple[str, ...], said: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*given: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer(*given) if callable(answer) else answer

    monkeypatch.setattr(f"ncclprobe.host.live.{name}", answer if name.isupper() else told)
    monkeypatch.setattr(live.Path, "glob", lambda *_: iter([Path("/proc/1/maps"), Path("/proc/2/maps")]))
    try:
        found: Any = json.loads(host.ask(*question))
    except HostError as error:
        found = f"{type(error).__name__}: {error}"
    assert (found["mine"] if question[0] == "stat" else found) == said
