"""``--hosts`` over a real sshd on each host: what fails is a finding in ssh's own words, and the rest is judged."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ncclprobe

from . import Host, Lab, why_not
from .processes import Completed, Running, must
from .rails import build, give_rails, with_fault

TOOLS = ("sshd", "ssh", "ssh-keygen")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not(*TOOLS)), reason=why_not(*TOOLS) or "a lab can be made here"),
]
UP_S = 20.0
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
_MODULE = b"ncclprobe.s"  # of session.ssh.there, and of start
PACKAGE = Path(ncclprobe.__file__).parent
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


class Cluster:
    """A lab in which every host has an sshd, and `ctl` the ssh of a user."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.folder = lab, lab.folder / "ssh"
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
        file, sshd = (
            self.folder / f"{host.name}.conf",
            shutil.which("sshd", path="/usr/sbin:/sbin:" + os.environ["PATH"]),
        )
        file.write_text(SERVER.format(folder=self.folder, keys=self.folder / f"{key}.pub", more=more))
        running = host.start([*before, str(sshd), "-D", "-e", "-f", str(file)])
        end_s = time.monotonic() + UP_S
        while "listening" not in running.err:
            assert time.monotonic() < end_s, running.err
            time.sleep(0.05)

    def start(self, *words: str) -> Running:
        """Start ncclprobe on the host of the user."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return self.lab.ctl.start([sys.executable, "-m", "ncclprobe", *words], {"PATH": path})


@contextlib.contextmanager
def cluster(hosts: int) -> Iterator[Cluster]:
    with Lab(hosts=hosts) as lab:
        yield Cluster(lab)


def told(report: dict[str, Any], check: str) -> dict[str, str]:
    """What is said of each subject."""
    found = [each for verdict in report["checks"] if verdict["id"] == check for each in verdict["findings"]]
    return {each["subject"]: each["message"] for each in found}


def test_of_eight_hosts_four_fail_each_in_its_own_way_and_four_are_judged_together() -> None:
    with cluster(8) as found:
        hosts = found.lab.hosts
        for host in hosts[:4]:
            found.serve(host)
        found.serve(hosts[4], more="ForceCommand sleep 1000")
        found.serve(hosts[5])
        empty = found.folder / "empty"
        empty.mkdir()
        hosts[5].must("mount", "--bind", str(empty), str(PACKAGE))
        found.serve(hosts[6], key="other_key")
        hosts[7].unwire()
        (found.folder / "hosts").write_text("n[0-3] slots=8\nn4\nn5:8\nn6\nn7\n")
        file = found.folder / "r.json"
        asked = ("--hostfile", str(found.folder / "hosts"), "--backend", "gloo", "--json", str(file))
        done = found.start("doctor", *asked).wait(200.0)
        report = json.loads(file.read_text())
        assert (done.code, report["exit_code"]) == (3, 3), done
        assert [each["name"] for each in report["nodes"]] == ["n0", "n1", "n2", "n3"]
        assert report["missing_nodes"] == ["n6", "n7", "n5", "n4"] or {*report["missing_nodes"]} == {
            "n4",
            "n5",
            "n6",
            "n7",
        }
        words = {
            "n4": "no answer within 30 s, a quarter of --timeout",
            "n5": "No module named",
            "n6": "Permission denied",
            "n7": "No route to host",
        }
        said = told(report, "sync.nodes")
        assert {name: text for name, text in words.items() if text not in said.get(name, "")} == {}
        assert told(report, "launch.master") == {}
        assert next(each for each in report["checks"] if each["id"] == "launch.unproven")["status"] == "pass"


def started_on(host: Host) -> list[int]:
    """The processes that --hosts has started on a host."""
    here = Path(f"/proc/{host.pid}/ns/net").readlink()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "ns/net").readlink() == here and _MODULE in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def test_an_interruption_leaves_nothing_on_the_hosts() -> None:
    with cluster(2) as found:
        for host in found.lab.hosts:
            found.serve(host)
        asked = ("--nproc", "2", "--backend", "gloo", "--timeout", "100")
        running = found.start("bandwidth", "--hosts", "n0,n1", *asked)
        end_s = time.monotonic() + 60.0
        while any(len(started_on(host)) < 3 for host in found.lab.hosts):  # the one that ssh started, and two ranks
            assert time.monotonic() < end_s, running.err
            assert running.popen.poll() is None, running.err
            time.sleep(0.1)
        running.popen.send_signal(signal.SIGINT)
        done = running.wait(20.0)
        assert (done.code, done.err.splitlines()[-1]) == (130, "ncclprobe: interrupted; nothing was judged")
        end_s = time.monotonic() + 10.0
        while left := [pid for host in found.lab.hosts for pid in started_on(host)]:
            assert time.monotonic() < end_s, left
            time.sleep(0.1)


def asked(found: Cluster, *words: str) -> tuple[Completed, dict[str, Any]]:
    """Run a command over all hosts, and return its report too."""
    file = found.folder / "r.json"
    names = ",".join(host.name for host in found.lab.hosts)
    done = found.start(words[0], "--hosts", names, "--json", str(file), *words[1:]).wait(200.0)
    assert file.exists(), done
    return done, json.loads(file.read_text())


def test_hosts_are_accepted_and_a_job_that_hangs_on_them_is_looked_at() -> None:
    with cluster(2) as found:
        for host in found.lab.hosts:
            found.serve(host, before=APART)
        done, report = asked(found, "accept", "--backend", "gloo", "--nproc", "1", "--timeout", "90")
        assert [each["name"] for each in report["nodes"]] == ["n0", "n1"], done
        assert (done.code, report["launch"]["world_size"]) == (report["exit_code"], 2)
        assert {each["nodes"] for each in report["measurements"]} == {2}
        assert report["pairs"]

        script, ready = found.folder / "rank.py", found.folder / "ready"
        script.write_text(RANK)
        ready.mkdir()
        job = "MASTER_ADDR=n0 MASTER_PORT=29511 WORLD_SIZE=2 LOCAL_RANK=0 GLOO_SOCKET_IFNAME=eth0"
        for number, host in enumerate(found.lab.hosts):
            line = f"env {job} RANK={number} {sys.executable} {script} {ready}"
            found.lab.ctl.start([str(found.folder / "bin/ssh"), host.name, line])
        end_s = time.monotonic() + 60.0
        while len([*ready.iterdir()]) < 2:
            assert time.monotonic() < end_s, [*ready.iterdir()]
            time.sleep(0.1)
        kept = found.folder / "kept"
        done, report = asked(found, "attach", "--redact-key", "k", "--keep", str(kept))
        assert "2 of 2 ranks were examined" in done.out, done
        texts = {path.name: path.read_text() for path in kept.iterdir()}
        assert sorted(texts) == ["host0.jsonl", "host1.jsonl"]
        names = [
            name for name in ("n0", "n1") for text in (*texts.values(), json.dumps(report["nodes"])) if name in text
        ]
        assert names == []


def test_rails_are_tried_between_hosts() -> None:
    with cluster(2) as found:
        library = found.folder / "lib"
        library.mkdir()
        build(library)
        give_rails(found.lab, library, with_fault(found.lab, state=1))
        for host in found.lab.hosts:
            given = " ".join(f'"{name}={value}"' for name, value in host.env.items())
            found.serve(host, more=f"SetEnv {given}")
        done, report = asked(found, "rails", "--timeout", "110")
        dead = told(report, "rail.dead")
        assert done.code == report["exit_code"] == 4, done
        assert [*dead] == ["n0 rail 1 <-> n1 rail 1"]
