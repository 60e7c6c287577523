"""What settings of a job cost on six types of machines: how grave each is, and what it leaves of the machine."""

from collections.abc import Iterator
from functools import cache

import zoo

from ncclprobe.engine import diagnose
from ncclprobe.engine.collect import replayed
from ncclprobe.engine.diagnose import Judging
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings, merge, parse_conf
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row

FAIL, WARN, NOTE = Severity.FAIL, Severity.WARN, Severity.NOTE
H100, GB200, A100, EFA, TCPXO, PCIE = "hgx-h100", "gb200-tray", "a100-bridged", "aws-p4d", "gcp-a3-mega", "l40s-8"
CONF = "/etc/nccl.conf"


@cache
def machine(name: str) -> Snapshot:
    return replayed([zoo.CAPTURES / f"{name}.jsonl"], discover("ncclprobe.facts", Collector, diagnose.MACHINE))[0]


def report(name: str, words: str, nodes: int | None = 2, conf: str = "") -> Report:
    """What the doctor says of a machine in a job of two nodes with NAME=VALUE settings, and a configuration file."""
    before = machine(name)
    variables = dict(word.split("=", 1) for word in words.split())
    settings: Settings = merge(Environment(variables), [parse_conf(conf, CONF)])
    environment = Environment({**before.facts[Environment].variables, **variables})
    facts = {**before.facts, Environment: environment, Settings: settings}
    facts |= {Launch: Launch("torchrun", nnodes=nodes)} if nodes else {}
    question = diagnose.ask(Judging(), ("doctor",), Job())
    return diagnose.diagnose(question, [replace(before, facts=facts)])


def findings(name: str, words: str, nodes: int | None = 2, conf: str = "") -> Iterator[Finding]:
    """What it says more than without them."""
    usual = {(each.id, f.subject, f.message) for each in report(name, "", nodes).checks for f in each.findings}
    for verdict in report(name, words, nodes, conf).checks:
        yield from (f for f in verdict.findings if (verdict.id, f.subject, f.message) not in usual)


def gravest(name: str, words: str, nodes: int | None = 2, conf: str = "") -> Severity | None:
    found = {f.severity for f in findings(name, words, nodes, conf)}
    return next((each for each in (FAIL, WARN, NOTE) if each in found), None)


TABLE: dict[tuple[str, Severity | None], list[str]] = {
    (H100, FAIL): [
        "NCCL_IB_HCA=mlx5_0", "NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=LOC", "NCCL_IB_DISABLE=1", "NCCL_NET=Socket",
        "NCCL_BUFFSIZE=8M", "NCCL_PROTO=LL", "NCCL_MAX_NCHANNELS=1", "NCCL_MAX_NCHANNELS=2", "NCCL_MAX_CTAS=4",
        "NCCL_SOCKET_IFNAME=lo", "NCCL_IB_PKEY=0x8001"],
    (H100, WARN): ["NCCL_IB_HCA=^mlx5_0,mlx5_1", "NCCL_NET_GDR_LEVEL=LOC", "NCCL_NET_GDR_READ=0",
        "OMPI_MCA_btl_tcp_if_include=192.0.2.0/24", "NCCL_NVLS_ENABLE=0", "NCCL_ALGO=Tree", "NCCL_MAX_NCHANNELS=8",
        "NCCL_NTHREADS=64", "UCX_NET_DEVICES=mlx5_20:1", "NVSHMEM_HCA_LIST=mlx5_20:1",
        "OMPI_MCA_btl_tcp_if_include=eth7", "NCCL_ALGO_ALL=Ring", "NCCL_USE_RDMA=1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "NCCL_MAX_P2P_NCHANNELS=1", "nccl_debug=INFO", "NCLL_DEBUG=INFO",
        "CUDA_VISIBLE_DEVICE=0,1", "UCX_NET_DEVICE=mlx5_0:1", "UCX_TLS=rcx", "UCX_NET_DEVICES=mlx5_0",
        "UCX_LOG_LEVEL=debug", "TP_SOCKET_IFNAME=eth7", "OMPI_MCA_oob_tcp_if_include=eth7",
        "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth7", "NVSHMEM_REMOTE_TRANSPORT=ibrcc", "NVSHMEM_SYMMETRIC_SIZE=1X",
        "NCCL_IB_TIMEOUT=0", "HCOLL_MAIN_IB=mlx5_77:1"],
    (H100, None): ["NCCL_IB_HCA=mlx5", "NCCL_MAX_NCHANNELS=32", "NCCL_MNNVL_ENABLE=0",
        "UCX_NET_DEVICES=mlx5_0:1 OMPI_MCA_btl_tcp_if_include=eno1 NVSHMEM_HCA_LIST=mlx5_0:1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "NCCL_P2P_LEVEL=NVL",
        "TORCH_NCCL_ENABLE_MONITORING=1 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        "UCX_RNDV_SCHEME=put_zcopy UCX_TLS=rc,cuda_copy,ud:aux", "TP_SOCKET_IFNAME=eno1",
        "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=en", "NVSHMEM_SYMMETRIC_SIZE=1.5G NVSHMEM_REMOTE_TRANSPORT=ibrc",
        "NCCL_IB_TIMEOUT=22", "HCOLL_MAIN_IB=mlx5_1:1"],
    (EFA, None): ["NCCL_IB_DISABLE=1", "FI_PROVIDER=efa", "FI_PROVIDER=EFA", "FI_MR_CACHE_MAX_COUNT=0"],
    (H100, NOTE): ["NCCL_CUMEM_ENABLE=0", "NCCL_SHM_DISABLE=1", "NCCL_PXN_DISABLE=1", "GLOO_SOCKET_FAMILY=AF_INET",
        "NCCL_HOME=/opt/nccl", "TORCH_NCCL_BLOCKING_WAIT=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "TORCH_NCCL_ENABLE_MONITORING=0", "NCCL_IB_PKEY=0", "NCCL_COLLNET_ENABLE=1", "NCCL_DMABUF_ENABLE=0",
        "NCCL_P2P_DIRECT_DISABLE=1", "NCCL_CHECK_POINTERS=1"],
    (GB200, FAIL): ["NCCL_CUMEM_ENABLE=0", "NCCL_MNNVL_ENABLE=0", "NCCL_P2P_DISABLE=1", "NCCL_MAX_NCHANNELS=2"],
    (GB200, WARN): ["NCCL_IB_HCA=mlx5_0", "NCCL_NVLS_ENABLE=0"],
    (A100, WARN): ["NCCL_IB_ADDR_RANGE=192.168.192.0/33", "NCCL_P2P_DISABLE=1"],
    (A100, NOTE): ["NCCL_IB_ADDR_RANGE=192.168.192.0/24 NCCL_IB_GID_INDEX=3"],
    (A100, FAIL): ["NCCL_IB_ADDR_FAMILY=AF_INET6", "NCCL_IB_GID_INDEX=0"], (A100, None): ["NCCL_IB_GID_INDEX=3"],
    (EFA, FAIL): ["FI_PROVIDER=tcp", "NCCL_NET_PLUGIN=none"],
    (TCPXO, FAIL): ["NCCL_NET=Socket", "NCCL_FASTRAK_IFNAME=eth1,eth2,eth3,eth4 NCCL_FASTRAK_CTRL_DEV=eth0"],
    (PCIE, WARN): ["NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=NVL", "NCCL_SHM_DISABLE=1"],
    (PCIE, None): ["NCCL_P2P_LEVEL=SYS", "NCCL_IB_DISABLE=1"], (GB200, NOTE): ["NCCL_IB_DISABLE=1", "NCCL_NET=Socket"],
    (EFA, WARN): ["FI_PROVIDERS=efa"],
    (TCPXO, WARN): ["NCCL_FASTRAK_IFNAME=eth1,eth2,eth3,eth4,eth5,eth6 NCCL_FASTRAK_CTRL_DEV=eth0"],
    (TCPXO, NOTE): ["NCCL_FASTRAK_IFNAME=eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8 NCCL_FASTRAK_CTRL_DEV=eth0"],
}  # fmt: skip


@each_row(("name", "severity", "words"), [(*key, words) for key, each in TABLE.items() for words in each])
def test_a_setting_is_as_grave_as_what_it_costs_here(name: str, severity: Severity | None, words: str) -> None:
    assert gravest(name, words) == severity, "; ".join(f"{f.subject} {f.message}" for f in findings(name, words))


@each_row(
    ("text", "severity"),
    [
        ("export NCCL_IB_HCA=mlx5_0\n", WARN), ("set NCCL_IB_HCA=mlx5_0\n", WARN), ("NCCL_IB_HCA = mlx5_0\n", FAIL),
        ("NCCL_IB_HCA=^mlx5_0 # keep\n", WARN), ("NCCL_IB_HCA=mlx5\n", NOTE),
    ],
)  # fmt: skip
def test_what_a_line_of_a_file_does_not_set_is_said(text: str, severity: Severity) -> None:
    assert gravest(H100, "", conf=text) == severity


def test_without_a_launcher_a_node_with_a_fabric_is_judged_for_two_nodes() -> None:
    found = report(H100, "NCCL_IB_HCA=mlx5_0", nodes=None)
    assert found.exit_code == 4
    assert found.predicted
    assert (found.predicted.now_GBps < found.predicted.healthy_GBps / 2, found.predicted.nodes) == (True, 2)
