"""What rank 0 needs of its machine before anybody calls: the port and room for connections."""

import errno
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ncclprobe.cluster.rendezvous import coordinator
from ncclprobe.cluster.rendezvous.coordinator import CannotListen, bind_listener

ROOT = Path(__file__).resolve().parents[3]


def room_under(soft: int, hard: int, wanted: int) -> tuple[int, int]:
    """room_for(wanted) in a process with these limits, and its soft limit afterwards."""
    script = (
        "import resource, sys\n"
        "from ncclprobe.cluster.rendezvous.coordinator import room_for\n"
        "soft, hard, wanted = map(int, sys.argv[1:])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "print(room_for(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    command = [sys.executable, "-c", script, *map(str, (soft, hard, wanted))]
    room, limit = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    return int(room), int(limit)


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2000, reason="ulimit -Hn is too low")
def test_the_soft_limit_is_raised_as_far_as_is_needed_and_no_farther() -> None:
    assert room_under(300, 2000, 1000) == (1000, 1256)
    assert room_under(300, 900, 1000) == (644, 900)
    assert room_under(2000, 2000, 10) == (10, 2000)


def test_without_ipv6_the_port_is_opened_for_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = coordinator._bound

    def without_ipv6(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, address, port)

    monkeypatch.setattr(coordinator, "_bound", without_ipv6)
    with bind_listener(0) as sock:
        assert sock.family == socket.AF_INET
        assert sock.getsockname()[0] == "0.0.0.0"


def test_a_port_on_which_another_listens_is_taken_also_if_only_on_one_address() -> None:
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as other:
            other.bind((address, 0))
            other.listen()
            with pytest.raises(CannotListen) as caught:
                bind_listener(other.getsockname()[1])
        assert caught.value.kind == "taken"


def test_a_port_can_be_had_again_at_once() -> None:
    with bind_listener(0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as caller, first.dup():
            first.setblocking(True)
            task, _ = first.accept()
            task.close()
            caller.recv(1)
    bind_listener(port).close()
