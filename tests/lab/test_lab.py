"""The lab itself: hosts are hosts, faults do what they say and are undone, and nothing is left behind."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psutil
import pytest

from . import Completed, Host, Lab, LabError, faults, hosts, outside, why_not

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
DRAIN = """
import socket, sys, time
began, count = time.monotonic(), 0
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3.0) as wire:
    while chunk := wire.recv(1 << 20):
        count += len(chunk)
print(count, time.monotonic() - began)
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


def drain(source: Host, target: Host, nic: int = 0) -> Completed:
    return source.run([sys.executable, "-c", DRAIN, target.address(nic), str(PORT)], timeout_s=20.0)


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


def test_sixteen_hosts_come_up_and_go() -> None:
    with Lab(hosts=16, nics=2, ipv6=True) as lab:
        serve(lab.hosts[15])
        assert "hello" in connect(lab.hosts[0], "n15")


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


def test_a_stopped_command_goes_on_where_it_was(lab: Lab) -> None:
    job = lab.hosts[0].start(["sh", "-c", "echo a; sleep 0.3; echo b"])
    job.until_says("a")
    with faults.stopped(job):
        time.sleep(0.6)
        assert job.out == "a\n"
    assert job.wait(5.0).out == "a\nb\n"


def test_a_port_is_filtered_refused_or_both_only_from_one_peer(lab: Lab) -> None:
    one, two, three = lab.hosts
    serve(one)
    with faults.filtered(one, port=PORT):
        assert "TimeoutError" in connect(two, "n0")
    with faults.refused(one, port=PORT):
        assert "ConnectionRefused" in connect(two, "n0")
    with faults.filtered(one, port=PORT, peer=two):
        assert "TimeoutError" in connect(two, "n0")
        assert "hello" in connect(three, "n0")
    assert "hello" in connect(two, "n0")


def test_ephemeral_ports_are_filtered_in_one_direction_only(lab: Lab) -> None:
    one, two, _ = lab.hosts
    for host in (one, two):
        serve(host, 45_000)
        serve(host)
    with faults.filtered(one, port=faults.EPHEMERAL, to="out"):
        assert "TimeoutError" in connect(one, "n1", 45_000)
        assert "hello" in connect(one, "n1")


@pytest.mark.parametrize(("says", "heard"), [("nothing", "TimeoutError"), ("banner", "SSH-2.0"), ("garbage", "heard")])
def test_a_port_is_taken_by_another_service(lab: Lab, says: Literal["nothing", "banner"], heard: str) -> None:
    with faults.taken(lab.hosts[0], PORT, says):
        assert heard in connect(lab.hosts[1], "n0")
    assert "Refused" in connect(lab.hosts[1], "n0")


def test_a_flood_does_not_end(lab: Lab) -> None:
    with faults.taken(lab.hosts[0], PORT, "flood"):
        done = lab.hosts[1].run([sys.executable, "-c", DRAIN, "n0", str(PORT)], timeout_s=1.5)
    assert done.timed_out


def test_a_black_hole_passes_small_messages_and_swallows_large_ones(lab: Lab) -> None:
    one, two, _ = lab.hosts
    serve(one, times=20_000)
    serve(one, PORT + 1)
    assert drain(two, one).out.startswith("100000 ")
    with faults.mtu_black_hole(one):
        assert "hello" in connect(two, "n0", PORT + 1)
        assert "timed out" in drain(two, one).err
    assert drain(two, one).out.startswith("100000 ")


def test_a_shaped_card_is_slow_and_the_other_is_not(lab: Lab) -> None:
    one, two, _ = lab.hosts
    serve(one, times=500_000)  # 2.5 MB: a second at 20 Mbit/s
    with faults.shaped(one, mbits=20, nic=1):
        slow_s = float(drain(two, one, nic=1).out.split()[1])
        fast_s = float(drain(two, one, nic=0).out.split()[1])
    assert 0.6 < slow_s < 3.0
    assert fast_s < slow_s / 2


def test_a_slow_line_adds_its_delay_each_way(lab: Lab) -> None:
    one, two, _ = lab.hosts
    serve(one)
    with faults.slow(one, delay_s=0.05):
        said = connect(two, "n0")
        assert "hello" in said
        assert float(said.split()[-1]) > 0.19  # two round trips: the connection, then the greeting
    assert "hello" in connect(two, "n0")


def test_a_line_that_loses_nearly_everything_connects_nobody(lab: Lab) -> None:
    serve(lab.hosts[0])
    with faults.lossy(lab.hosts[0], 99):
        assert "TimeoutError" in connect(lab.hosts[1], "n0")
    with faults.lossy(lab.hosts[0], 20):
        assert "Refused" not in connect(lab.hosts[1], "n0")


def test_cards_are_down_missing_renamed_and_without_or_with_another_address(lab: Lab) -> None:
    one, two, _ = lab.hosts
    serve(one)
    look = "ip -o addr show scope global | cut -d' ' -f2-7 | sort; ip route | sort; ls /sys/class/net"
    before = sh(one, look)
    with faults.link_down(one, 1):
        assert sh(one, "cat /sys/class/net/eth1/operstate") == "down"
    with faults.cable_pulled(one, 1):
        assert sh(one, "cat /sys/class/net/eth1/carrier") == "0"
        assert one.address(1) in sh(one, "ip -4 -o addr show dev eth1")
    with faults.card_missing(one, 1):
        assert sh(one, "ls /sys/class/net") == "eth0\nlo"
    with faults.renamed(one, "ens5"):
        assert "ens5" in sh(one, "ls /sys/class/net")
        assert "hello" in connect(two, "n0")
    with faults.addressed(one):
        assert sh(one, "ip -o addr show dev eth0") == ""
        assert "hello" not in connect(two, "n0")
    with faults.addressed(one, "10.99.0.1/24"):
        assert "10.99.0.1/24" in sh(one, "ip -o addr show dev eth0")
    with faults.same_address(one, two):
        assert two.address() in sh(one, "ip -o addr show dev eth0")
    with faults.mtu(one, 9000):
        assert sh(one, "cat /sys/class/net/eth0/mtu") == "9000"
    with faults.bridge(one), faults.bridge(one, "virbr7", "192.168.122.1/24"):
        assert {"docker0", "virbr7"} < set(sh(one, "ls /sys/class/net").split())
    assert "hello" in connect(two, "n0")
    assert sh(one, look) == before


def test_names_routes_memory_limits_clock_and_settings_differ_on_one_host(lab: Lab) -> None:
    one, two, _ = lab.hosts
    with faults.names(one, "127.0.1.1 n0"):
        assert sh(one, "getent hosts n0").startswith("127.0.1.1")
        assert sh(one, "getent hosts n1") == ""
        assert sh(two, "getent ahostsv4 n0").startswith("10.77.0.1")
    with faults.no_default_route(one):
        assert "unreachable" in connect(one, "192.0.2.1")
    assert "TimeoutError" in connect(one, "192.0.2.1")
    with faults.small_shm(one, 4 << 20):
        assert sh(one, "df -B1 --output=size /dev/shm").endswith("4194304")
        assert sh(two, "df -B1 --output=size /dev/shm").endswith("67108864")
    with faults.low_memlock(one), faults.prefixed(two, "prlimit", "--nofile=64:64"):
        assert sh(one, "ulimit -l") == "64"
        assert sh(two, "ulimit -n") == "64"
    with faults.sysctl(one, "net.ipv4.ip_local_port_range", "40000\t40010"):
        assert sh(one, "cat /proc/sys/net/ipv4/ip_local_port_range") == "40000\t40010"
        assert sh(two, "cat /proc/sys/net/ipv4/ip_local_port_range") != "40000\t40010"
    with faults.environment(one, NCCL_DEBUG="INFO x"):
        assert sh(one, "echo $NCCL_DEBUG") == "INFO x"
    assert sh(one, "echo $NCCL_DEBUG; ulimit -n") == sh(two, "echo $NCCL_DEBUG; ulimit -n")


def test_two_hosts_have_one_identity(lab: Lab) -> None:
    one, two, _ = lab.hosts
    look = "hostname; cat /proc/sys/kernel/random/boot_id"
    before = sh(two, look)
    with faults.same_identity(two, one):
        assert sh(one, look) == sh(two, look)
    assert sh(two, look) == before


def test_a_clock_is_off_and_deadlines_are_not(lab: Lab) -> None:
    try:
        with faults.clock_off(lab.hosts[0], 600):
            asked = [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"]
            wall_s, monotonic_s = map(float, lab.hosts[0].run(asked).out.split())
    except LabError as error:
        pytest.skip(str(error))
    assert 590 < wall_s - time.time() < 610
    assert abs(monotonic_s - time.monotonic()) < 10


def test_a_tool_that_fails_says_why_and_a_host_that_is_down_says_so(lab: Lab) -> None:
    with pytest.raises(LabError, match="Cannot find device"):
        lab.hosts[0].ip("link set eth7 up")
    with pytest.raises(LabError, match="did not say"):
        lab.hosts[0].start(["false"]).until_says("ready")
    with pytest.raises(LabError, match="is not up"):
        _ = Lab(hosts=1).hosts[0].pid
    with pytest.raises(ValueError, match="1 to 250"):
        Lab(hosts=0)
    assert "no-such-tool" in hosts.why_not("no-such-tool")
