"""Strangers on the nodes' network: none of them gets a node blamed, holds a run up, or takes a node's place."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from . import Completed, Host, Lab, why_not
from .hosts import Running, ended
from .launchers import PORT, TOKEN, by_hand, findings, report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]
STRANGER = str(Path(__file__).with_name("stranger.py"))
LATE_S = 2.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(hosts=4, ipv6=True) as made:
        yield made


def attack(host: Host, *words: object, until: str = "ready") -> Running:
    job = host.start([sys.executable, STRANGER, *map(str, words)], {"PYTHONPATH": str(Path.cwd())})
    if until:
        job.until_says(until)
    return job


def doctors(hosts: Sequence[Host], timeout_s: float = 20.0, env: Mapping[str, str] = TOKEN) -> dict[str, Running]:
    """The doctor by hand on `hosts`; node n of the job is host n, and there are three."""
    return by_hand(hosts, "--timeout", f"{timeout_s:g}", nodes=3, env=env)


def over(jobs: Mapping[str, Running]) -> tuple[dict[str, Completed], tuple[int, ...]]:
    done = ended(jobs, 60.0)
    return done, tuple(each.code for each in done.values())


def test_sockets_held_open_to_a_nodes_mesh_port_blame_no_node(lab: Lab) -> None:
    for source in (lab.ctl, lab["n3"]):
        attack(source, "hold", lab["n1"].address(), lab["n1"].pid, 400)
    done, codes = over(doctors(lab.hosts[:3]))
    assert findings(lab, "fail") == {}, done
    assert set(codes) <= {0, 3}
    assert all(node["status"] != "fail" for node in report(lab)["nodes"])


@pytest.mark.parametrize("sources", [0, 400], ids=["one address", "hundreds of addresses"])
def test_a_crowd_at_the_meeting_port_does_not_hold_up_node_0_and_is_named(lab: Lab, sources: int) -> None:
    own = [f"fd77:0::5:{number:x}" for number in range(sources)]
    if own:
        lab["n3"].ip(*(f"addr add {source}/64 dev eth0 nodad" for source in own))
    at = lab["n0"].address(family=6 if own else 4)
    crowd = attack(lab["n3"], "crowd", at, PORT, 3000 if own else 8000, *own)
    first = doctors(lab.hosts[:1])
    crowd.until_says("hung up on")
    done, codes = over(first | doctors(lab.hosts[1:3]))
    assert all(each.seconds < 20.0 + LATE_S for each in done.values()), done
    assert set(codes) <= {0, 3}, done
    assert findings(lab, "fail") == {}, done
    (flood,) = findings(lab, "warn")["launch.port"]
    assert not any(host.address() in flood["message"] for host in lab.hosts[:3])
    assert own or lab["n3"].address() in flood["message"]


def test_a_crowd_while_a_node_is_missing_ends_in_time_and_leaves_the_node_unknown(lab: Lab) -> None:
    attack(lab["n3"], "crowd", lab["n0"].address(), PORT, 8000)
    done, codes = over(doctors(lab.hosts[:2], timeout_s=12.0))
    assert all(each.seconds < 12.0 + LATE_S for each in done.values()), done
    assert codes in ((3, 0), (3, 3)), done  # on a busy machine the crowd keeps n1 out too
    assert findings(lab, "fail") == {}


@pytest.mark.parametrize("env", [{}, TOKEN])
def test_a_stranger_takes_no_seat_gets_no_capture_and_dismisses_nobody(lab: Lab, env: dict[str, str]) -> None:
    stranger = attack(lab["n3"], "seat", lab["n0"].address(), PORT, 2, until="")
    _, codes = over(doctors(lab.hosts[:2], timeout_s=12.0, env=env))
    assert codes[0] != 0
    assert "let in" not in stranger.out
    stranger.kill()

    bait = lab["n3"].start([sys.executable, "-c", BAIT])
    bait.until_says("ready")
    impostor = attack(lab["n0"], "impostor", PORT, lab["n3"].address(), 9999)
    _, codes = over(doctors(lab.hosts[1:2], env=env))
    assert codes[0] != 0
    assert "took" not in impostor.out
    assert "called" not in bait.out


BAIT = """
import socket
with socket.create_server(("", 9999)) as server:
    print("ready", flush=True)
    server.accept()
    print("called", flush=True)
"""
