"""``--hosts`` over a real sshd on each host: what fails is a finding in ssh's own words, and the rest is judged."""

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ncclprobe

from . import Completed, Host, Lab, Running, why_not
from .hosts import must
from .launchers import NCCLPROBE

TOOLS = ("sshd", "ssh", "ssh-keygen")
_WHY_NOT = why_not(*TOOLS)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "a lab can be made here")]
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
RANK = """\
import pathlib, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
pathlib.Path(sys.argv[1], str(dist.get_rank())).touch()
if dist.get_rank():
    time.sleep(1000)
dist.all_reduce(torch.ones(1))
"""
SERVER = """\
HostKey {folder}/host_key
AuthorizedKeysFile {keys}
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PidFile none
{more}
"""
CLIENT = """\
IdentityFile {folder}/user_key
UserKnownHostsFile {folder}/known
StrictHostKeyChecking accept-new
"""


def until(holds: Callable[[], bool], what: Callable[[], object], timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s, what()
        time.sleep(0.05)


class Cluster:
    """A lab in which every host has an sshd, and `ctl` the ssh of a user."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.hosts, self.folder = lab, lab.hosts, lab.folder / "ssh"
        self.folder.mkdir()
        for name in ("host_key", "user_key", "other_key"):
            must(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)])
        (self.folder / "config").write_text(CLIENT.format(folder=self.folder))
        program = self.folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/config "$@"\n')
        program.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)

    def serve(self, host: Host, key: str = "user_key", more: str = "", before: Sequence[str] = ()) -> None:
        """Start the sshd of a host, which takes the user's key, or another one; `before`: a program that starts it."""
        file, sshd = self.folder / f"{host.name}.conf", shutil.which("sshd", path=f"/usr/sbin:{os.environ['PATH']}")
        file.write_text(SERVER.format(folder=self.folder, keys=self.folder / f"{key}.pub", more=more))
        host.start([*before, str(sshd), "-D", "-e", "-f", str(file)]).until_says("listening")

    def start(self, *words: str) -> Running:
        """Start ncclprobe on the host of the user."""
        return self.lab.ctl.start([*NCCLPROBE, *words], {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"})

    def asked(self, command: str, *words: str) -> tuple[Completed, dict[str, Any]]:
        """Run a command over hosts, all of them unless a file names them, and return its report too."""
        file = self.folder / "r.json"
        names = [] if "--hostfile" in words else ["--hosts", ",".join(host.name for host in self.hosts)]
        done = self.start(command, *names, "--json", str(file), *words).wait(200.0)
        assert file.exists(), done
        return done, json.loads(file.read_text())


@contextlib.contextmanager
def cluster(hosts: int) -> Iterator[Cluster]:
    with Lab(hosts=hosts) as lab:
        yield Cluster(lab)


def told(report: dict[str, Any], check: str) -> dict[str, str]:
    """What is said of each subject."""
    found = [each for verdict in report["checks"] if verdict["id"] == check for each in verdict["findings"]]
    return {each["subject"]: each["message"] for each in found}


def test_of_six_hosts_four_fail_each_in_its_own_way_and_two_are_judged_together() -> None:
    with cluster(6) as found:
        for host in found.hosts[:2]:
            found.serve(host)
        slow, bare, closed, dead = found.hosts[2:]
        found.serve(slow, more="ForceCommand sleep 1000")
        found.serve(bare)
        empty = found.folder / "empty"
        empty.mkdir()
        bare.must("mount", "--bind", str(empty), str(Path(ncclprobe.__file__).parent))
        found.serve(closed, key="other_key")
        found.lab.ctl.ip(f"link del {dead.port()}")
        (found.folder / "hosts").write_text("n[0-1] slots=8\nn2\nn3:8\nn4\nn5\n")
        done, report = found.asked("doctor", "--hostfile", str(found.folder / "hosts"), "--backend", "gloo")
        assert (done.code, report["exit_code"]) == (3, 3), done
        assert [each["name"] for each in report["nodes"]] == ["n0", "n1"]
        words = {
            "n2": "no answer within 30 s, a quarter of --timeout", "n3": "No module named", "n4": "Permission denied",
            "n5": "No route to host",
        }  # fmt: skip
        assert sorted(report["missing_nodes"]) == [*words]
        said = told(report, "sync.nodes")
        assert {name: text for name, text in words.items() if text not in said.get(name, "")} == {}
        assert told(report, "launch.master") == {}
        assert next(each for each in report["checks"] if each["id"] == "launch.unproven")["status"] == "pass"


def test_hosts_are_accepted_and_a_job_that_hangs_on_them_is_looked_at() -> None:
    with cluster(2) as found:
        for host in found.hosts:
            found.serve(host, before=APART)
        done, report = found.asked("accept", "--backend", "gloo", "--nproc", "1", "--timeout", "90")
        assert [each["name"] for each in report["nodes"]] == ["n0", "n1"], done
        assert (done.code, report["launch"]["world_size"]) == (report["exit_code"], 2)
        assert {each["nodes"] for each in report["measurements"]} == {2}
        assert report["pairs"]

        script, ready, kept = found.folder / "rank.py", found.folder / "ready", found.folder / "kept"
        script.write_text(RANK)
        ready.mkdir()
        job = "MASTER_ADDR=n0 MASTER_PORT=29511 WORLD_SIZE=2 LOCAL_RANK=0 GLOO_SOCKET_IFNAME=eth0"
        for number, host in enumerate(found.hosts):
            line = f"env {job} RANK={number} {sys.executable} {script} {ready}"
            found.lab.ctl.start([str(found.folder / "bin/ssh"), host.name, line])
        until(lambda: len([*ready.iterdir()]) == 2, lambda: [*ready.iterdir()])
        done, report = found.asked("attach", "--redact-key", "k", "--keep", str(kept))
        assert "2 of 2 ranks were examined" in done.out, done
        texts = {path.name: path.read_text() for path in kept.iterdir()}
        assert sorted(texts) == ["host0.jsonl", "host1.jsonl"]
        public = (*texts.values(), json.dumps(report["nodes"]))
        assert [name for name in ("n0", "n1") for text in public if name in text] == []
