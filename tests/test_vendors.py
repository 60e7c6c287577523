"""What vendors prescribe for their networks is no mistake there, and what differs from it is one."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tomllib
import zoo

from ncclprobe.checks.env.fixtures import having
from ncclprobe.engine.collect import replayed
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.nccl import networks
from tests.each_row import each_row

BLOCKS: Mapping[str, Any] = tomllib.loads(
    (Path(__file__).parent / "data" / "vendors" / "blocks.toml").read_text(encoding="utf-8")
)
CHECKS = every_check(MACHINE)


def settings_of(name: str) -> dict[str, str]:
    rows = (line.partition("=") for line in BLOCKS[name]["block"].strip().splitlines())
    return {variable: value for variable, _, value in rows}


@cache
def machine(name: str) -> Snapshot:
    return replayed([zoo.CAPTURES / f"{name}.jsonl"], discover("ncclprobe.facts", Collector, {"machine"}))[0]


def grave(like: str, variables: Mapping[str, str], cloud: str = "") -> list[Finding]:
    before = machine(like)
    environment = Environment({**before.facts[Environment].variables, **variables})
    changed = {Settings: having(**variables), Environment: environment}
    clouds = {Machine: replace(before.facts[Machine], cloud=cloud)} if cloud else {}
    verdicts = judge([replace(before, facts={**before.facts, **changed, **clouds})], CHECKS, Job())
    return [f for verdict in verdicts for f in verdict.findings if f.severity is not Severity.NOTE]


@each_row("name", BLOCKS)
def test_a_block_that_its_vendor_prescribes_warns_of_nothing(name: str) -> None:
    assert grave(BLOCKS[name]["like"], settings_of(name), BLOCKS[name].get("cloud", "")) == []


ONE_WRONG = [(name, *block["wrong"].partition("=")[::2]) for name, block in BLOCKS.items() if "wrong" in block]
WRONG = [
    ("tcpxo-2026", "NCCL_P2P_NET_CHUNKSIZE", "131072"), ("tcpxo-2026", "NCCL_FASTRAK_CTRL_DEV", "eth1"),
    ("tcpxo-2026", "NCCL_FASTRAK_IFNAME", "eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth17"),
    ("tcpxo-2026", "NCCL_FASTRAK_IFNAME", "eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth7"),
    ("tcpxo-2025", "NCCL_PROTO", "LL128"), ("tcpx", "NCCL_NET_GDR_LEVEL", "pix"), ("tcpx", "NCCL_ALGO", "Tree"),
    ("gib-a4", "NCCL_IB_TC", "106"), ("efa-p4d", "FI_PROVIDER", "tcp"), ("efa-p5", "NCCL_BUFFSIZE", "8M"),
    ("oci-h100", "NCCL_IB_TC", "106"), ("oci-h100", "NCCL_IB_TIMEOUT", "14"),
    ("slingshot-cscs", "FI_MR_CACHE_MONITOR", "off"), ("slingshot-cscs", "NCCL_CROSS_NIC", "0"),
    ("sharp", "NCCL_COLLNET_ENABLE", "0"), ("plain-infiniband", "NCCL_IB_RETRY_CNT", "14"),
]  # fmt: skip


@each_row(("name", "variable", "value"), [*WRONG, *ONE_WRONG])
def test_one_wrong_value_in_a_block_is_named(name: str, variable: str, value: str) -> None:
    found = grave(BLOCKS[name]["like"], {**settings_of(name), variable: value}, BLOCKS[name].get("cloud", ""))
    assert any(variable in finding.subject or variable in finding.message for finding in found)


LESS = {name: value for name, value in settings_of("tcpxo-2026").items() if name != "NCCL_BUFFSIZE"}
NO_SHARP = {"NCCL_COLLNET_ENABLE": "0"}


@each_row(
    ("like", "cloud", "variables", "subjects"),
    [
        ("gcp-a3-mega", "", LESS, []),  # what is prescribed and not set costs nothing by itself
        # What one vendor prescribes stays a warning elsewhere.
        ("hgx-h100", "", {"NCCL_NVLS_ENABLE": "0"}, ["NCCL_NVLS_ENABLE"]),
        ("hgx-h100", "", {"NCCL_ALGO": "Ring"}, ["NCCL_ALGO"]),
        # One variable of a plugin does not make another network the vendor's.
        ("hgx-h100", "", {"FI_EFA_USE_DEVICE_RDMA": "0"}, []),
        ("aws-p4d", "", {"FI_EFA_USE_DEVICE_RDMA": "0"}, ["FI_EFA_USE_DEVICE_RDMA"]),
        ("hgx-h100", "", {"NCCL_ALGO": "CollnetDirect"}, ["NCCL_ALGO"]),
        ("hgx-h100", "", {"NCCL_ALGO": "CollnetDirect", "NCCL_COLLNET_ENABLE": "1"}, []),
        ("hgx-h100", "azure", {"NCCL_MNNVL_ENABLE": "0"}, []),
        # Who turns SHARP off is not asked to turn it on.
        ("hgx-h100", "", {**NO_SHARP, "SHARP_COLL_ENABLE_SAT": "0"}, []),
        ("hgx-h100", "", {**NO_SHARP, "SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING": "1"}, []),
        ("hgx-h100", "", {**NO_SHARP, "SHARP_COLL_ENABLE_SAT": "1"}, ["NCCL_COLLNET_ENABLE"]),
        # A cloud makes its vendor's settings right, and one that is missing is no fault.
        ("hgx-h100", "oracle", {}, []),
        ("hgx-h100", "oracle", {"NCCL_IB_TC": "106"}, ["NCCL_IB_TC"]),
        ("hgx-h100", "oracle", {"NCCL_IB_TIMEOUT": "16", "NCCL_IB_TC": "41"}, []),
    ],
)
def test_a_setting_is_held_against_the_vendor_of_the_network(
    like: str, cloud: str, variables: Mapping[str, str], subjects: list[str]
) -> None:
    assert [finding.subject for finding in grave(like, variables, cloud)] == subjects


def test_of_two_vendors_at_once_each_wrong_value_is_held_against_its_own() -> None:
    both = {**settings_of("sharp"), **settings_of("oci-h100")}
    assert grave("hgx-h100", both, "oracle") == []
    found = grave("hgx-h100", {**both, "NCCL_COLLNET_ENABLE": "0", "NCCL_IB_TC": "106"}, "oracle")
    prescribed = {finding.subject: finding.message.partition(" prescribes ")[0] for finding in found}
    assert prescribed == {
        "NCCL_IB_TC": "is '106'; Oracle for its RDMA network",
        "NCCL_COLLNET_ENABLE": "is '0'; NVIDIA for SHARP",
    }


def test_every_vendor_has_a_title_and_a_source() -> None:
    sources, rows = networks._table()
    assert {*sources} == {*networks.TITLES} == {row.vendor for row in rows}
    assert all(any(year in source for year in ("2022", "2023", "2024", "2025")) for source in sources.values())
    assert len({(row.vendor, row.name) for row in rows}) == len(rows)
