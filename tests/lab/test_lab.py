"""The lab itself: hosts are hosts, and nothing is left behind."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psutil
import pytest

from . import Host, Lab, outside, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]

PORT = 29500
CONNECT = """
import socket, sys, time
began = time.monotonic()
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1.0) as wire:
        wire.settimeout(float(sys.argv[3]))
        print("heard", wire.recv(1 << 20)[:20])
except OSError as error:
    print(type(error).__name__, error)
print(f"{time.monotonic() - began:.3f}")
"""
ECHO = """
import socket, sys
with socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("ready", flush=True)
    while True:
        wire, _ = server.accept()
        with wire:
            try:
                wire.sendall(b"hello" * int(sys.argv[2]))
            except OSError:
                pass
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(hosts=3, nics=2, ipv6=True) as made:
        yield made


def sh(host: Host, line: str) -> str:
    return host.run(["sh", "-c", line], timeout_s=10.0).out.strip()


def serve(host: Host, port: int = PORT, times: int = 1) -> None:
    host.start([sys.executable, "-c", ECHO, str(port), str(times)]).until_says("ready")


def connect(source: Host, target: str, port: int = PORT, patience_s: float = 1.0) -> str:
    return source.run([sys.executable, "-c", CONNECT, target, str(port), str(patience_s)], timeout_s=15.0).out


def until(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def test_every_host_has_a_name_an_identity_cards_and_memory_of_its_own(lab: Lab) -> None:
    look = "hostname; cat /proc/sys/kernel/random/boot_id; echo $(ls /sys/class/net); ls /sys/fs/cgroup | wc -l"
    seen = [sh(host, look) for host in lab.hosts]
    names, boots, cards, cgroups = zip(*(text.splitlines() for text in seen), strict=True)
    assert names == ("n0", "n1", "n2")
    assert len({*boots, Path("/proc/sys/kernel/random/boot_id").read_text().strip()}) == 4
    assert {card.strip() for card in cards} == {"eth0 eth1 lo"}
    assert len(set(cgroups)) == 1
    assert int(cgroups[0]) > 0
    sh(lab.hosts[0], "echo here >/dev/shm/ours")
    assert sh(lab.hosts[1], "ls /dev/shm") == ""
    assert "67108864" in sh(lab.hosts[1], "df -B1 --output=size /dev/shm")


@pytest.mark.parametrize("family", [4, 6])
def test_hosts_reach_each_other_on_every_card_and_by_name(lab: Lab, family: Literal[4, 6]) -> None:
    serve(lab.hosts[1])
    for nic in range(lab.nics):
        assert "hello" in connect(lab.hosts[0], lab.hosts[1].address(nic, family))
    assert "hello" in connect(lab.hosts[2], "n1")


def test_a_lab_of_ipv6_only_has_no_other_address_and_its_names_resolve() -> None:
    with Lab(hosts=2, ipv4=False, ipv6=True) as lab:
        serve(lab.hosts[1])
        assert "hello" in connect(lab.hosts[0], "n1")
        assert sh(lab.hosts[0], "ip -4 -o addr show dev eth0") == ""


def test_two_labs_at_once_do_not_see_each_other(lab: Lab) -> None:
    serve(lab.hosts[1])
    with Lab(hosts=2) as other:
        assert "Refused" in connect(other.hosts[0], "n1")
        assert "hello" in connect(lab.hosts[0], "n1")
    assert "hello" in connect(lab.hosts[0], "n1")


def test_nothing_is_left_of_a_lab_whose_block_raised() -> None:
    with pytest.raises(KeyboardInterrupt), Lab(hosts=2) as lab:  # noqa: PT012
        folder, shell = lab.folder, lab.hosts[0].pid
        job = lab.hosts[0].start(["sh", "-c", "setsid sleep 99 & echo $!; wait"])
        job.until_says("\n")
        sleeper = int(job.out)
        raise KeyboardInterrupt
    assert not folder.exists()
    assert not psutil.pid_exists(shell)
    assert job.popen.returncode == -signal.SIGKILL
    until(lambda: not alive(sleeper), "a process that left its group outlived the lab")


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from lab import Lab
with Lab(hosts=2) as lab:
    job = lab.hosts[0].start(["sh", "-c", "setsid sleep 99 & echo $!; wait"])
    job.until_says("\\n")
    print(lab.folder, lab.hosts[0].pid, job.pid, job.out.strip(), flush=True)
    time.sleep(60)
"""


def test_a_killed_test_leaves_no_process_and_a_folder_that_the_next_run_cleans() -> None:
    script = [sys.executable, "-c", KILLED, str(Path(__file__).parent.parent)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        folder, *pids = killed.stdout.readline().split()
        killed.kill()
    for pid in pids:
        until(lambda pid=pid: not alive(int(pid)), f"{pid} of {pids} is left")  # type: ignore[misc]
    assert Path(folder) in outside.clean()
    assert not Path(folder).exists()


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_lab_that_is_in_use_is_not_cleaned(lab: Lab) -> None:
    assert lab.folder not in outside.clean()
    assert lab.folder.exists()


def test_a_command_is_killed_with_all_its_children_at_the_deadline(lab: Lab) -> None:
    done = lab.hosts[0].run(["sh", "-c", "setsid sleep 98 & echo $!; sleep 97"], timeout_s=0.5)
    assert done.timed_out
    assert done.code == -signal.SIGKILL
    until(lambda: not alive(int(done.out)), "the child outlived its deadline")
