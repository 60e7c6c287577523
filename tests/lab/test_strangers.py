"""Strangers on the nodes' network: none of them gets a node blamed, holds a run up, or takes a node's place."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from . import Completed, Host, Lab, why_not
from .processes import Running
from .run import ended

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]

STRANGER = str(Path(__file__).with_name("stranger.py"))
PORT = 29500
TOKEN = {"NCCLPROBE_TOKEN": "a secret of the nodes of this job"}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(hosts=4) as made:
        yield made


def attack(host: Host, *words: object, until: str = "ready") -> Running:
    job = host.start([sys.executable, STRANGER, *map(str, words)], {"PYTHONPATH": str(Path.cwd())})
    if until:
        job.until_says(until)
    return job


def doctors(
    lab: Lab, hosts: Sequence[Host], *more: str, timeout_s: float = 20.0, env: Mapping[str, str] = TOKEN
) -> dict[str, Running]:
    """The doctor by hand on `hosts`; node n of the job is host n, and there are three."""
    jobs = {}
    for host in hosts:
        words = [
            "--nnodes",
            "3",
            "--node-rank",
            str(host.number - 1),
            "--master-addr",
            "n0",
            "--master-port",
            str(PORT),
        ]
        report = ["--json", str(lab.folder / f"{host.name}.json"), "--no-color", "--timeout", f"{timeout_s:g}"]
        jobs[host.name] = host.start(
            [sys.executable, "-m", "ncclprobe.doctor", "--backend", "gloo", *words, *report, *more], env
        )
    return jobs


def report(lab: Lab, host: str = "n0") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((lab.folder / f"{host}.json").read_text())
    return found


def findings(lab: Lab, severity: str = "fail", host: str = "n0") -> dict[str, list[dict[str, Any]]]:
    """What a report finds, by check."""
    every = [(each["id"], one) for each in report(lab, host)["checks"] for one in each["findings"]]
    return {name: [one for id_, one in every if id_ == name] for name, one in every if one["severity"] == severity}


def codes(done: Mapping[str, Completed]) -> dict[str, int]:
    return {name: each.code for name, each in done.items()}


def doctors_in_a_crowd(lab: Lab, crowd: Running) -> dict[str, Running]:
    """The same on three hosts, the others once node 0 has had to hang up on the crowd."""
    first = doctors(lab, lab.hosts[:1])
    crowd.until_says("hung up on")
    return first | doctors(lab, lab.hosts[1:3])


def over(jobs: Mapping[str, Running], timeout_s: float = 20.0) -> dict[str, Completed]:
    return ended(jobs, time.monotonic() + 3 * timeout_s)


def test_sockets_held_open_to_a_nodes_mesh_port_blame_no_node(lab: Lab) -> None:
    for number in range(2):  # two sources
        attack((lab.ctl, lab.hosts[3])[number], "hold", lab.hosts[1].address(), lab.hosts[1].pid, 400)
    done = over(doctors(lab, lab.hosts[:3]))
    assert findings(lab) == {}, done
    assert set(codes(done).values()) <= {0, 3}
    assert all(node["status"] != "fail" for node in report(lab)["nodes"])


def test_a_crowd_at_the_meeting_port_does_not_hold_up_node_0_and_is_named(lab: Lab) -> None:
    crowd = attack(lab.hosts[3], "crowd", lab.hosts[0].address(), PORT, 8000)
    done = over(doctors_in_a_crowd(lab, crowd))
    assert all(each.seconds < 20.0 + 2.0 for each in done.values()), done
    assert findings(lab) == {}, done
    (flood,) = findings(lab, "warn")["launch.port"]
    assert lab.hosts[3].address() in flood["message"]


def test_a_crowd_while_a_node_is_missing_ends_in_time_and_leaves_the_node_unknown(lab: Lab) -> None:
    attack(lab.hosts[3], "crowd", lab.hosts[0].address(), PORT, 8000)
    done = over(doctors(lab, lab.hosts[:2], timeout_s=12.0))
    assert all(each.seconds < 12.0 + 2.0 for each in done.values()), done
    assert codes(done) in ({"n0": 3, "n1": 0}, {"n0": 3, "n1": 3}), done  # on a busy machine the crowd keeps n1 out too
    assert findings(lab) == {}


def test_callers_that_say_what_no_node_says_change_nothing(lab: Lab) -> None:
    attack(lab.hosts[3], "pester", lab.hosts[0].address(), PORT, 60)
    done = over(doctors(lab, lab.hosts[:3]))
    assert set(codes(done).values()) == {0}, done
    assert all(node["status"] in ("pass", "warn") for node in report(lab)["nodes"])


def test_a_crowd_from_hundreds_of_addresses_keeps_no_node_out() -> None:
    with Lab(hosts=4, ipv6=True) as lab:
        sources = [f"fd77:0::5:{number:x}" for number in range(400)]
        lab.hosts[3].ip(*(f"addr add {source}/64 dev eth0 nodad" for source in sources))
        crowd = attack(lab.hosts[3], "crowd", lab.hosts[0].address(family=6), PORT, 3000, *sources)
        done = over(doctors_in_a_crowd(lab, crowd))
        assert set(codes(done).values()) <= {0, 3}, done
        assert all(each.seconds < 20.0 + 2.0 for each in done.values()), done
        assert findings(lab) == {}
        (flood,) = findings(lab, "warn")["launch.port"]
        assert not any(host.address() in flood["message"] for host in lab.hosts[:3])


@pytest.mark.parametrize("env", [{}, TOKEN])
def test_a_stranger_does_not_take_a_dead_nodes_seat(lab: Lab, env: dict[str, str]) -> None:
    stranger = attack(lab.hosts[3], "seat", lab.hosts[0].address(), PORT, 2, until="")
    done = over(doctors(lab, lab.hosts[:2], timeout_s=12.0, env=env))
    assert done["n0"].code != 0
    assert "let in" not in stranger.out


@pytest.mark.parametrize("env", [{}, TOKEN])
def test_a_stranger_at_node_0s_port_gets_no_capture_and_dismisses_nobody(lab: Lab, env: dict[str, str]) -> None:
    bait = lab.hosts[3].start([sys.executable, "-c", BAIT])
    bait.until_says("ready")
    impostor = attack(lab.hosts[0], "impostor", PORT, lab.hosts[3].address(), 9999)
    done = over(doctors(lab, lab.hosts[1:2], env=env))
    assert done["n1"].code != 0
    assert "took" not in impostor.out
    assert "called" not in bait.out


BAIT = """
import socket
with socket.create_server(("", 9999)) as server:
    print("ready", flush=True)
    server.accept()
    print("called", flush=True)
"""
