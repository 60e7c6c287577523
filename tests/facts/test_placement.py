"""Where a node stands: by a variable, Slurm, cloud-init, a pod's labels and Azure's host, and by nothing."""

import json

import pytest
import zoo

from ncclprobe import api
from ncclprobe.engine.collect import recordable
from ncclprobe.engine.inventory import areas
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.machine import Dmi, Machine
from ncclprobe.facts.placement import CLOUD_INIT, HYPERV, LABELS, QUESTION, Placement, cloud_init, placement
from ncclprobe.host import Question
from ncclprobe.model.errors import Denied, HostError, Missing, ParseError
from ncclprobe.model.report import PlacementLevel
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.report import text
from tests.each_row import each_row

SLURM = {"SLURM_TOPOLOGY_ADDR": "spine1.leaf7.n3", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
EC2 = {
    "v1.region": "us-east-1",
    "v1.availability_zone": "us-east-1d",
    "ds.meta_data.placement.availability-zone-id": "use1-az6",
    "ds.meta_data.placement.group-name": "llm",
}
LABELLED = """\
cloud.google.com/gce-topology-block="b1"
cloud.google.com/gce-topology-host="h9"
cloud.google.com/gce-topology-subblock="s2"
topology.kubernetes.io/zone="us-central1-a"
"""


class Told:
    """Answers these questions; refuses every other one, and remembers that it was asked."""

    def __init__(self, answers: dict[Question, str | HostError]) -> None:
        self.answers, self.asked = answers, list[Question]()

    def ask(self, *question: str | int) -> str:
        self.asked.append(question)
        answer = next((said for asked, said in self.answers.items() if question[: len(asked)] == asked), Missing("no"))
        if isinstance(answer, HostError):
            raise answer
        return answer


def levels(
    variables: dict[str, str | None], cloud: str = "", answers: dict[Question, str | HostError] | None = None
) -> list[tuple[str, str]]:
    seen = placement.run(Told(answers or {}), Environment(variables), Machine(Dmi(), cloud))
    return [(each.kind, each.name) for each in seen.levels]


def test_slurm_tells_switches_or_blocks_and_not_the_node() -> None:
    assert levels({**SLURM}) == [("switch", "spine1"), ("leaf switch", "leaf7")]
    block = {"SLURM_TOPOLOGY_ADDR": "b3.n3", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}
    assert levels({**block}) == [("block", "b3")]
    for address, pattern in [("n3", "node"), ("s.n3", "node"), ("", ""), ("s.n", "switch.other")]:
        assert levels({"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}) == []


def test_what_the_user_says_counts_before_slurm() -> None:
    assert levels({**SLURM, "NCCLPROBE_PLACEMENT": "/b7/ sub2 /"}) == [("place", "b7"), ("place", "sub2")]
    assert {"NCCLPROBE_PLACEMENT", "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"} <= recordable()


def test_cloud_init_tells_what_the_metadata_service_told_it() -> None:
    found = levels({}, "aws", {QUESTION: json.dumps(EC2)})
    assert found == [("region", "us-east-1"), ("zone", "use1-az6"), ("placement group", "llm")]
    azure = {"ds.meta_data.imds.compute.placementGroupId": "6a7f"}
    said: dict[Question, str | HostError] = {QUESTION: json.dumps(azure), ("kvp", HYPERV): "DUB081\n"}
    assert levels({}, "azure", said) == [("placement group", "6a7f"), ("physical host", "DUB081")]
    assert levels({}, "aws", {QUESTION: Denied("no")}) == []
    assert levels({}, "aws", {QUESTION: "{"}) == []


def test_labels_of_a_pod_tell_blocks_and_the_zone() -> None:
    told = levels({**POD}, "gcp", {("lines", LABELS): LABELLED})
    assert told == [("zone", "us-central1-a"), ("block", "b1"), ("subblock", "s2"), ("physical host", "h9")]
    with_slurm = levels({**POD, **SLURM}, "", {("lines", LABELS): LABELLED})
    assert with_slurm == [
        *[("zone", "us-central1-a"), ("switch", "spine1"), ("leaf switch", "leaf7"), ("physical host", "h9")]
    ]


def test_a_machine_of_no_cloud_is_asked_nothing() -> None:
    host = Told({})
    assert placement.run(host, Environment({**SLURM}), Machine()).levels
    assert host.asked == []


@each_row("text", ["", "[]", "{", "null", '"x"'])
def test_an_answer_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        cloud_init(text)


def test_the_report_says_where_a_node_stands_and_what_says_so() -> None:
    report = api.doctor([str(zoo.CAPTURES / "aws-p4d.jsonl")])
    levels = report.environment["aws-p4d"].placement
    assert [(each.kind, each.name) for each in levels] == [("region", "us-east-1"), ("zone", "use1-az6")]
    assert f"zone: use1-az6 ({CLOUD_INIT})" in text.render(report, verbose=True)
    assert api.doctor([str(zoo.CAPTURES / "dgx-a100.jsonl")]).environment["dgx-a100"].placement == ()


def test_zones_and_switches_of_several_nodes_are_counted() -> None:
    def line(*zones: str) -> str:
        nodes = [
            Placement((PlacementLevel("zone", zone, ""), PlacementLevel("leaf switch", "s1", ""))) for zone in zones
        ]
        (area,) = areas([Snapshot(f"n{n}", {Placement: each}) for n, each in enumerate(nodes)], (), Job("nccl"), 2)[:1]
        return area.values

    assert line("a", "b") == "2 of 2 · 2 zones · leaf switch s1"
    assert line("a", "a") == "2 of 2 · zone a · leaf switch s1"
