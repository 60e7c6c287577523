"""What gloo listens on, and whether two nodes' devices meet, beside what torch 2.13 did in networks of namespaces.

The vectors were recorded from torch 2.13: the interfaces as ncclprobe saw them, what each host's own
name resolved to, what every rank listened on, and whether the group came up.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe.checks.env.fixtures import DOCKER_HOST
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.gloo import Device, Node, Refused, devices, partings
from tests.each_row import some

VECTORS = Path(__file__).resolve().parents[1] / "data" / "gloo" / "groups.jsonl"


@cache
def vectors() -> list[dict[str, Any]]:
    return [json.loads(line) for line in VECTORS.read_text().splitlines()]


def nodes_of(row: dict[str, Any]) -> dict[str, Node]:
    found = {}
    for number, (facts, rank, said) in enumerate(
        zip(row["interfaces"], row["case"]["ranks"], row["said"], strict=True)
    ):
        own = msgspec.convert(facts, Interfaces)
        ifname = rank["env"].get("GLOO_SOCKET_IFNAME", "")
        found[f"n{number}"] = Node(own, devices(own, ifname, rank["hostname"], said["resolved"]["addresses"]))
    return found


def test_every_rank_listens_where_torch_did_and_a_group_that_cannot_come_up_did_not() -> None:
    for number, row in enumerate(vectors()):
        nodes = nodes_of(row)
        for node, said in some(zip(nodes.values(), row["said"], strict=True)):
            if any(isinstance(each, Refused) for each in node.devices):
                assert "refused" in said, number
            elif not any(isinstance(each, Absent) for each in node.devices):
                own = [each.address.partition("%")[0] for each in node.devices if isinstance(each, Device)]
                assert own == said["listens"], number
        refused = any(isinstance(each, Refused) for node in nodes.values() for each in node.devices)
        hopeless = refused or bool(list(partings(nodes)))
        assert hopeless == (row["expected"] in ("refused", "parted")), number
        if hopeless or row["expected"] == "up":
            assert all(said.get("joined") for said in row["said"]) is not hopeless, number
    assert {row["expected"] for row in vectors()} == {"up", "refused", "parted", "no way", "unknown"}


def test_a_bridge_that_every_node_has_connects_nobody_to_another() -> None:
    docker = devices(DOCKER_HOST, "docker0", "n", ())
    (pair,) = partings({"n0": Node(DOCKER_HOST, docker), "n1": Node(DOCKER_HOST, docker)})
    assert (pair.one, pair.other, pair.why) == ("n0", "n1", "both have 172.17.0.1")
