"""What NVIDIA's driver shows of RoCE ports' marks, and that what it does not show is not known."""

import json
from ipaddress import IPv6Address
from typing import Any

import pytest
from conftest import answers

from ncclprobe.checks.env.fixtures import fabric, port
from ncclprobe.engine.collect import collect
from ncclprobe.facts import infiniband
from ncclprobe.facts.infiniband import Fabric, Gid, RoceMarks, RoceQos
from ncclprobe.host import Question
from ncclprobe.model.errors import Missing, ParseError
from ncclprobe.model.registry import Collector
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

ROCE = port("mlx5_0", link_layer="Ethernet", gids=(Gid(3, IPv6Address("::ffff:10.0.0.1"), "RoCE v2", "eth2"),))
TRAFFIC_CLASS = ("read", "/sys/class/infiniband/mlx5_0/tc/1/traffic_class")
ECN = {side: ("files", f"/sys/class/net/eth2/ecn/{side}/enable") for side in ("roce_rp", "roce_np")}


def learned(said: dict[Question, Any], found: Fabric) -> RoceQos:
    given = Collector(run=lambda host: found, produces=Fabric)
    seen = collect(answers(said), [infiniband.roce_qos, given])[RoceQos]
    assert isinstance(seen, RoceQos)
    return seen


def test_traffic_class_and_ecn_are_read_by_priority() -> None:
    every = json.dumps({str(n): str(int(n == 3)) for n in range(8)})
    seen = learned({TRAFFIC_CLASS: "Global tclass=106\n", ECN["roce_rp"]: every, ECN["roce_np"]: "{}"}, fabric(ROCE))
    assert seen.ports == {"mlx5_0:1": RoceMarks("Global tclass=106", (3,), ())}


def test_what_the_kernels_own_driver_does_not_show_is_not_known() -> None:
    seen = learned({}, fabric(port("mlx5_0", link_layer="Ethernet")))
    assert all(
        isinstance(each, Absent) for each in (seen.ports["mlx5_0:1"].slows, seen.ports["mlx5_0:1"].traffic_class)
    )
    gone = learned(dict.fromkeys((TRAFFIC_CLASS, *ECN.values()), Missing("not there")), fabric(ROCE))
    assert {each.refused for each in (gone.ports["mlx5_0:1"].slows, gone.ports["mlx5_0:1"].notifies)} == {"Missing"}


def test_infiniband_ports_are_not_asked() -> None:
    assert learned({}, fabric(port("mlx5_0"))) == RoceQos()


@each_row("text", ["", "[]", "7", '{"a": "1"}'])
def test_a_table_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        infiniband.priorities(text)
