"""The caller's side of --hosts, and the process on a host: with a script for ssh, and this process for the host."""

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ncclprobe import __version__
from ncclprobe.session.ssh import there
from ncclprobe.session.ssh.here import Calls, command
from ncclprobe.session.ssh.there import MARK, Hello, Order, Outcome

SSH = f"""#!/bin/sh
while [ "$1" != -- ]; do shift; done
hello() {{ echo "motd"; echo 'ncclprobe-host {{"version": "{__version__}", "gpus": 2}}'; read order; }}
case $2 in
good) hello; echo "it begins" >&2; echo 'ncclprobe-host {{"codes": [0, 4], "report": "r"}}';;
dies) hello; exit 3;;
broken) hello; echo 'ncclprobe-host {{"codes": 7}}';;
refused) echo "Connection refused" >&2; exit 255;;
mute) exit 255;;
absent) echo "No module named ncclprobe" >&2; exit 1;;
old) echo 'ncclprobe-host {{"version": "0.0.1"}}'; sleep 60;;
garbled) echo 'ncclprobe-host {{'; sleep 60;;
silent) sleep 60;;
esac
"""
FAILED = {
    "dies": ("lost", "exit code 3"),
    "broken": ("lost", "its answer is not understood: Expected `array`, got `int` - at `$.codes`"),
    "refused": ("ssh", "Connection refused"),
    "mute": ("ssh", "exit code 255"),
    "absent": ("absent", "No module named ncclprobe"),
    "old": ("version", f"it has ncclprobe 0.0.1, and this is {__version__}"),
    "garbled": ("absent", "its answer is not understood: Input data was truncated"),
}


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("ssh")
def test_each_host_answers_obeys_or_is_told_with_its_last_words() -> None:
    said: list[str] = []
    with Calls(["good", *FAILED], "python3", said.append) as calls:
        present = calls.greet(240.0, lambda words: None)
        assert [(call.host, call.hello and call.hello.gpus) for call in present] == [
            (host, 2) for host in ("good", "dies", "broken")
        ]
        for call in present:
            call.order(Order(("doctor",), ({},)))
        calls.outcomes(present, deadline=1e12)
        assert present[0].outcome == Outcome((0, 4), "r")
        assert said == ["it begins"]
        failed = {call.host: (call.failure.kind, call.failure.words) for call in calls.all if call.failure}
        assert failed == FAILED


@pytest.mark.usefixtures("ssh")
def test_a_host_that_says_nothing_has_a_quarter_of_the_time() -> None:
    with Calls(["silent"], "python3", print) as calls:
        assert calls.greet(0.8, lambda words: None) == []
        assert calls.all[0].failure is not None
        assert calls.all[0].failure.kind == "silent"
    assert command("n0", "my python", 9.0)[-2:] == ["n0", "exec 'my python' -m ncclprobe.session.ssh.there"]
    assert "ConnectTimeout=4" in command("n0", "python3", 9.0)


def test_a_host_greets_obeys_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, started = io.TextIOWrapper(io.BytesIO()), list[Any]()
    order = Order(("checks", "--config", "{a.toml}"), ({"RANK": "0"}, {"RANK": "1"}), {"a.toml": "x"}, True, keep=True)

    def start(*words: str, stdout: int, stderr: None, variables: dict[str, str]) -> "subprocess.Popen[bytes]":
        *entry, config, report, kept = words
        started.append((*entry, Path(config).read_text(), kept.partition("=")[0], variables))
        Path(report.partition("=")[2]).write_text("a report")
        return subprocess.Popen(["sh", "-c", f"exit {len(started)}"], start_new_session=True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(there, "start_own", start)
    monkeypatch.setattr(there, "_line", lambda: msgspec.json.encode(order))
    monkeypatch.setattr(there, "select", SimpleNamespace(select=lambda *_: ([], [], [])))
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 4000 10.0.0.2 22")
    monkeypatch.setattr(there, "read_captures", lambda folder: ({folder.name: "x"}, 2))
    assert there.main() == 0
    entry = ("ncclprobe.start:program", "checks", "--config", "x", "--keep")
    assert started == [(*entry, {"RANK": "0"}), (*entry, {"RANK": "1"})]
    hello, outcome = out.buffer.getvalue().splitlines()  # type: ignore[attr-defined]
    greeted = msgspec.json.decode(hello.removeprefix(MARK), type=Hello)
    assert (greeted.version, greeted.address, greeted.port in range(20_000, 30_000)) == (__version__, "10.0.0.2", True)
    assert msgspec.json.decode(outcome.removeprefix(MARK), type=Outcome) == Outcome(
        (1, 2), "a report", {"kept": "x"}, 2
    )
