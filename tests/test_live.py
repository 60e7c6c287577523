"""Asking the machine itself: every way of not answering is told apart, nothing hangs, nothing is left behind."""

import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.host import deadlines, live
from ncclprobe.host.command import run
from ncclprobe.host.live import LiveHost, within
from ncclprobe.host.settings import as_started, set_ours
from ncclprobe.model.errors import Denied, Failed, HostError, Missing, OutOfTime, TimedOut
from tests.each_row import each_row


@pytest.fixture
def host() -> Iterator[LiveHost]:
    found = LiveHost({"NCCL_DEBUG", "http_proxy"}, lambda name: name.startswith(("NCCL_", "SLURM_")))
    yield found
    found.close()


def hasty(seconds: float) -> LiveHost:
    """A host that must have answered by then."""
    return LiveHost((), lambda name: False, deadline=time.monotonic() + seconds)


def asked_of(program: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `program` print `said`."""
    (folder / program).write_text(f"#!/bin/sh\necho '{said}'\n")
    (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


# What is there, and what is not.


@each_row(
    ("question", "error", "words"),
    [
        (("read", "{}/a"), Missing, "."), (("list", "{}/a"), Missing, "."),
        (("list", "{}/a", "nccl-*"), Missing, "."), (("read", "{}/file/below"), Missing, "."),
        (("run", "no-such-command-of-ours"), Missing, "."), (("module", "no_such_module_of_ours"), Missing, "."),
        (("kvp", "{}/file", "PhysicalHost"), Missing, "no PhysicalHost"),
        (("json", "{}/file", "v1"), Failed, "not JSON"), (("json", "{}/deep", "v1"), Failed, "not JSON"),
        (("read", "/proc"), Failed, "Is a directory"),
        (("resolve", "no-such-name.invalid"), Failed, r"resolve no-such-name\.invalid"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_missing_and_an_error_is_in_its_own_words(
    host: LiveHost, tmp_path: Path, question: tuple[str, ...], error: type[HostError], words: str
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "deep").write_text("[" * 100_000)
    with pytest.raises(error, match=words):
        host.ask(*(word.format(tmp_path) for word in question))


def test_what_may_not_be_read_is_denied(host: LiveHost) -> None:
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may read everything
    try:
        with pytest.raises(Denied, match="permission denied"):
            host.ask("read", "/proc/1/environ")
    finally:
        os.seteuid(user)


def test_files_and_numbers_of_the_system_are_read(host: LiveHost, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x" * 200_000)
    assert host.ask("read", str(tmp_path / "f")) == "x" * 200_000
    assert host.ask("read", "/proc/sys/kernel/random/boot_id").count("-") == 4
    assert json.loads(host.ask("statvfs", "/"))["total"] > 0
    assert len(json.loads(host.ask("rlimit", "RLIMIT_NOFILE"))) == 2
    assert json.loads(host.ask("access", "/proc/self/status"))["read"] is True
    assert "127.0.0.1" in json.loads(host.ask("resolve", "127.0.0.1"))["addresses"]
    assert json.loads(host.ask("elf", sys.executable))["needed"]
    assert json.loads(host.ask("elf_symbols", sys.executable, "of no library")) == {"defined": [], "undefined": []}
    assert isinstance(json.loads(host.ask("ld_cache", "libc.so")), list)
    assert host.ask("module", "msgspec").endswith("__init__.py")


def test_packages_are_found_without_importing_them(host: LiveHost) -> None:
    code = "import sys; from ncclprobe.host.live import LiveHost\n"
    assert python(f"{code}h = LiveHost((), bool); h.ask('packages'); print('torch' in sys.modules)") == "False"
    assert "nvidia-ml-py" in json.loads(host.ask("packages"))


def test_only_the_lines_and_files_that_match_are_told(host: LiveHost, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("sl header\n1: mine 0A x\n2: theirs 01 x\n")
    assert host.ask("lines", str(tmp_path / "f"), "^sl|0A") == "sl header\n1: mine 0A x\n"
    for name in ("nccl-1", "nccl-2"):
        (tmp_path / name).touch()
    assert json.loads(host.ask("list", str(tmp_path), "nccl-*")) == ["nccl-1", "nccl-2"]
    assert len(json.loads(host.ask("list", str(tmp_path)))) == 3


def test_a_mapped_file_is_told_from_one_that_is_not(host: LiveHost, tmp_path: Path) -> None:
    for name in ("held", "left"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    with (tmp_path / "held").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        seen = json.loads(host.ask("mapped", f"{tmp_path}/"))
    assert seen["paths"] == [f"{tmp_path}/held"]
    assert json.loads(host.ask("stat", str(tmp_path / "left")))["mine"] is True


# Deadlines, and what this process lacks.


def test_a_read_that_never_returns_is_abandoned_and_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it for reading blocks for ever
    pipe = str(tmp_path / "pipe")
    with pytest.raises(TimedOut, match="no answer within"):
        LiveHost((), lambda name: False).ask("read", pipe)
    with pytest.raises(OutOfTime, match="all that --timeout left"):
        hasty(0.1).ask("read", pipe)
    monkeypatch.setitem(live.SOURCES, "kernel_log", lambda pattern: Path(pipe).read_text())
    with pytest.raises(OutOfTime, match=r"^the kernel's log: no answer within [^(|\\]* all that --timeout left$"):
        hasty(0.1).ask("kernel_log", r"NVRM: Xid \((\S+)\)|link (up|down)")


def test_after_the_runs_deadline_nothing_is_waited_for() -> None:
    started = sum(1 for _ in Path("/proc/self/task").iterdir())
    with pytest.raises(OutOfTime):
        hasty(-1.0).ask("run", "sleep", "5")
    assert sum(1 for _ in Path("/proc/self/task").iterdir()) <= started + 1


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


@each_row(
    ("work", "error", "words"),
    [
        (raising(PermissionError(13, "Permission denied")), Denied, "permission denied"),
        (raising(MemoryError()), OutOfTime, "not asked, because "),
        (raising(ValueError("odd")), Failed, "^resolve n0: odd$"),
        (None, OutOfTime, "not asked, because "),  # no thread can be started
    ],
)
def test_what_this_process_had_no_room_to_ask_says_nothing_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, work: Callable[..., Any] | None, error: type[HostError], words: str
) -> None:
    if work is None:
        monkeypatch.setattr(deadlines, "_IDLE", deque())
        monkeypatch.setattr("_thread.start_new_thread", raising(RuntimeError("can't start new thread")))
    with pytest.raises(error, match=words):
        within(1.0, work or print, "resolve n0")


@each_row(
    ("code", "kind"),
    [
        (socket.EAI_NONAME, Failed),
        (socket.EAI_AGAIN, Failed),
        *((each, OutOfTime) for each in (socket.EAI_MEMORY, socket.EAI_SYSTEM)),
    ],
)
def test_a_resolver_without_memory_says_nothing_of_a_name(
    monkeypatch: pytest.MonkeyPatch, host: LiveHost, code: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", raising(socket.gaierror(code, "in its words")))
    with pytest.raises(kind, match="resolve n0: in its words"):
        host.ask("resolve", "n0")


def test_a_thread_answers_one_question_after_another_and_not_after_it_was_late() -> None:
    asked_by: list[int] = []

    def work() -> None:
        asked_by.append(threading.get_ident())

    late, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        work()
        late.set()
        go_on.wait(60)

    within(10.0, work, "one")
    with pytest.raises(TimedOut):
        within(0.0, slow, "two")
    assert late.wait(60)
    within(10.0, work, "three")
    within(10.0, work, "four")
    one, two, three, four = asked_by
    assert (one, three, two != three) == (two, four, True)
    go_on.set()


def test_without_a_thread_for_it_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for start in ("_thread.start_new_thread", "threading.Thread.start"):
        monkeypatch.setattr(start, raising(RuntimeError("can't start new thread")))
    done: list[int] = []
    assert deadlines.until(time.monotonic() + 60, lambda: 7) == 7
    deadlines.at_once([lambda number=number: done.append(number) for number in (1, 2)])  # type: ignore[misc]
    assert done == [1, 2]


def test_a_reader_that_breaks_is_a_refusal_and_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[sys.UnraisableHookArgs] = []
    monkeypatch.setattr(sys, "unraisablehook", broken.append)
    with pytest.raises(Failed, match="its reader failed"):
        within(10.0, lambda: [][0], "nothing")
    assert within(10.0, lambda: "well", "something") == "well"
    assert [each.exc_type for each in broken] == [IndexError]


def test_a_fork_asks_on_threads_of_its_own() -> None:
    code = "import os\nfrom ncclprobe.host.deadlines import within\nwithin(9.0, lambda: None, '')\n"
    code += "pid = os.fork()\nok = within(9.0, lambda: 1, '') == 1\n"
    code += "os._exit(not ok) if not pid else os._exit(os.waitpid(pid, 0)[1] != 0 or not ok)\n"
    assert python(code) == ""


# Commands.


def test_a_command_answers_with_its_output_or_its_code_and_words() -> None:
    assert run(["printf", "hello"], 10) == "hello"
    assert run(["sh", "-c", "sleep 50 & echo done"], 40) == "done\n"  # a child that holds the pipes does not hold us
    with pytest.raises(Failed, match="exit code 9: no devices"):
        run(["sh", "-c", "echo no devices >&2; exit 9"], 10)
    with pytest.raises(Failed, match="printed more than 16 MiB"):
        run(["yes"], 60)


def test_a_command_out_of_time_is_killed_with_all_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(TimedOut):
        run(["sh", "-c", f"sleep 60 & echo $! > {pids}; echo $$ >> {pids}; wait"], 0.5)
    stats = [Path(f"/proc/{pid}/stat") for pid in pids.read_text().split()]
    for _ in range(100):
        left = [stat for stat in stats if stat.exists() and stat.read_text().rpartition(") ")[2][:1] != "Z"]
        if not left:
            break
        time.sleep(0.05)
    assert (len(stats), left) == (2, [])


def test_a_command_has_a_deadline_of_its_own(monkeypatch: pytest.MonkeyPatch, host: LiveHost) -> None:
    given: dict[str, float] = {}
    monkeypatch.setattr(live, "run", lambda argv, patience_s: given.setdefault(argv[0], patience_s) and "")
    for command in ("nvidia-smi", "ip"):
        host.ask("run", command)
    assert given == {"nvidia-smi": 60.0, "ip": 10.0}


def test_what_nvidia_smi_says_of_other_users_and_of_boards_stays_behind(
    host: LiveHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "<gpu><serial>1</serial><board_id>2</board_id><process_name>/home/a/b</process_name><pid>7</pid>"
    said += "<value>3</value><used>1 MiB</used><supported_graphics_clock>9 MHz</supported_graphics_clock></gpu>"
    asked_of("nvidia-smi", said, tmp_path, monkeypatch)
    assert host.ask("run", "nvidia-smi", "-q", "-x").strip() == "<gpu><used>1 MiB</used></gpu>"


def test_of_a_firewalls_rules_no_address_and_no_comment_enters_a_capture(
    host: LiveHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expr = [{"match": {"op": "==", "left": {"payload": {}}, "right": "10.9.8.7"}}, {"xt": {"name": "REJECT"}}]
    rule = {"family": "ip", "handle": 4, "comment": "the boss", "expr": expr}
    said = json.dumps({"nftables": [{"metainfo": {}}, {"chain": {"name": "INPUT"}}, {"rule": rule}]})
    asked_of("nft", said, tmp_path, monkeypatch)
    question = ("run", "nft", "-j", "list", "chain", "ip", "filter", "INPUT")
    kept = [{"match": None}, {"xt": {"name": "REJECT"}}]
    assert json.loads(host.ask(*question)) == {"nftables": [{"rule": {"expr": kept}}]}
    asked_of("nft", "no", tmp_path, monkeypatch)
    with pytest.raises(Failed, match="not understood"):
        host.ask(*question)


# What is recorded of settings.


def test_only_values_by_exact_name_are_recorded_of_the_environment_and_of_files(
    host: LiveHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = ("NCCL_", "SLURM_")
    monkeypatch.setattr(os, "environ", {name: text for name, text in os.environ.items() if not name.startswith(theirs)})
    given = {"NCCL_DEBUG": "INFO", "NCCL_DEBUGG": "INFO", "SLURM_JWT": "secret", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ.update(given | {"http_proxy": "http://me:secret@proxy:3128/"})
    kept = {"NCCL_DEBUG": "INFO", "NCCL_DEBUGG": None, "SLURM_JWT": None, "http_proxy": "http://proxy:3128/"}
    assert json.loads(host.ask("env")) == kept
    (tmp_path / "c").write_text("# my token: x\nNCCL_DEBUG=INFO\nAWS_SECRET=x\nNCCL_NEW=y\n NCCL_DEBUG = WARN\n")
    kept_lines = ["", "NCCL_DEBUG=INFO", "", "NCCL_NEW=<value not recorded>", " NCCL_DEBUG = WARN", ""]
    assert host.ask("conf", str(tmp_path / "c")).split("\n") == kept_lines


def test_what_ncclprobe_set_itself_is_told_as_it_was_before(host: LiveHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a report would find fault with settings that nobody made."""
    monkeypatch.setattr("ncclprobe.host.settings._OURS", {})
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_ALGO", "Tree")  # else the last line of this test would bring back what it takes away
    monkeypatch.delenv("NCCL_ALGO")
    set_ours({"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"})
    assert (os.environ["NCCL_DEBUG"], os.environ["NCCL_ALGO"]) == ("INFO", "Ring")
    said = json.loads(host.ask("env"))
    assert (said["NCCL_DEBUG"], "NCCL_ALGO" in said) == ("WARN", False)
    set_ours({"NCCL_DEBUG": "TRACE"})
    assert as_started()["NCCL_DEBUG"] == "WARN"
    monkeypatch.setenv("NCCL_DEBUG", "VERSION")  # by somebody else, since
    monkeypatch.delenv("NCCL_ALGO")
    assert as_started()["NCCL_DEBUG"] == "VERSION"
