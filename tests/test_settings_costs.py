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


TABLE = [
    (H100, "NCCL_IB_HCA=mlx5_0", FAIL),
    (H100, "NCCL_IB_HCA=^mlx5_0,mlx5_1", WARN),
    (H100, "NCCL_IB_HCA=mlx5", None),
    (H100, "NCCL_P2P_DISABLE=1", FAIL),
    (H100, "NCCL_P2P_LEVEL=LOC", FAIL),
    (H100, "NCCL_IB_DISABLE=1", FAIL),
    (H100, "NCCL_NET=Socket", FAIL),
    (H100, "NCCL_NET_GDR_LEVEL=LOC", WARN),
    (H100, "NCCL_NET_GDR_READ=0", WARN),
    (H100, "NCCL_BUFFSIZE=8M", FAIL),
    (H100, "OMPI_MCA_btl_tcp_if_include=192.0.2.0/24", WARN),
    (EFA, "NCCL_IB_DISABLE=1", None),
    (H100, "NCCL_NVLS_ENABLE=0", WARN),
    (H100, "NCCL_ALGO=Tree", WARN),
    (H100, "NCCL_PROTO=LL", FAIL),
    (H100, "NCCL_MAX_NCHANNELS=1", FAIL),
    (H100, "NCCL_MAX_NCHANNELS=2", FAIL),
    (H100, "NCCL_MAX_CTAS=4", FAIL),
    (H100, "NCCL_MAX_NCHANNELS=8", WARN),
    (H100, "NCCL_MAX_NCHANNELS=32", None),
    (H100, "NCCL_NTHREADS=64", WARN),
    (H100, "NCCL_CUMEM_ENABLE=0", NOTE),
    (H100, "NCCL_SHM_DISABLE=1", NOTE),
    (H100, "NCCL_PXN_DISABLE=1", NOTE),
    (H100, "NCCL_MNNVL_ENABLE=0", None),
    (H100, "NCCL_SOCKET_IFNAME=lo", FAIL),
    (H100, "UCX_NET_DEVICES=mlx5_20:1", WARN),
    (H100, "NVSHMEM_HCA_LIST=mlx5_20:1", WARN),
    (H100, "OMPI_MCA_btl_tcp_if_include=eth7", WARN),
    (H100, "UCX_NET_DEVICES=mlx5_0:1 OMPI_MCA_btl_tcp_if_include=eno1 NVSHMEM_HCA_LIST=mlx5_0:1", None),
    (H100, "GLOO_SOCKET_FAMILY=AF_INET", NOTE),
    (H100, "NCCL_ALGO_ALL=Ring", WARN),
    (H100, "NCCL_USE_RDMA=1", WARN),
    (H100, "NCCL_HOME=/opt/nccl", NOTE),
    (H100, "TORCH_NCCL_BLOCKING_WAIT=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1", NOTE),
    (H100, "TORCH_NCCL_ASYNC_ERROR_HANDLING=0", WARN),
    (H100, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1", None),
    (GB200, "NCCL_CUMEM_ENABLE=0", FAIL),
    (GB200, "NCCL_MNNVL_ENABLE=0", FAIL),
    (GB200, "NCCL_P2P_DISABLE=1", FAIL),
    (GB200, "NCCL_MAX_NCHANNELS=2", FAIL),
    (GB200, "NCCL_IB_HCA=mlx5_0", WARN),
    (GB200, "NCCL_NVLS_ENABLE=0", WARN),
    (A100, "NCCL_IB_ADDR_RANGE=192.168.192.0/33", WARN),
    (A100, "NCCL_IB_ADDR_RANGE=192.168.192.0/24 NCCL_IB_GID_INDEX=3", NOTE),
    (A100, "NCCL_IB_ADDR_FAMILY=AF_INET6", FAIL),
    (A100, "NCCL_IB_GID_INDEX=0", FAIL),
    (A100, "NCCL_IB_GID_INDEX=3", None),
    (A100, "NCCL_P2P_DISABLE=1", WARN),
    (EFA, "FI_PROVIDER=tcp", FAIL),
    (EFA, "FI_PROVIDER=efa", None),
    (EFA, "NCCL_NET_PLUGIN=none", FAIL),
    (TCPXO, "NCCL_NET=Socket", FAIL),
    (PCIE, "NCCL_P2P_DISABLE=1", WARN),
    (PCIE, "NCCL_P2P_LEVEL=NVL", WARN),
    (PCIE, "NCCL_P2P_LEVEL=SYS", None),
    (H100, "NCCL_P2P_LEVEL=NVL", None),
    (H100, "TORCH_NCCL_ENABLE_MONITORING=0", NOTE),
    (H100, "TORCH_NCCL_ENABLE_MONITORING=1 TORCH_NCCL_DUMP_ON_TIMEOUT=1", None),
    (PCIE, "NCCL_IB_DISABLE=1", None),
    (PCIE, "NCCL_SHM_DISABLE=1", WARN),
    (H100, "NCCL_IB_PKEY=0x8001", FAIL),
    (H100, "NCCL_IB_PKEY=0", NOTE),
    (H100, "NCCL_MAX_P2P_NCHANNELS=1", WARN),
    (GB200, "NCCL_IB_DISABLE=1", NOTE),
    (GB200, "NCCL_NET=Socket", NOTE),
    (H100, "NCCL_COLLNET_ENABLE=1", NOTE),
    (H100, "nccl_debug=INFO", WARN),
    (H100, "NCLL_DEBUG=INFO", WARN),
    (H100, "CUDA_VISIBLE_DEVICE=0,1", WARN),
    (H100, "UCX_NET_DEVICE=mlx5_0:1", WARN),
    (H100, "UCX_RNDV_SCHEME=put_zcopy UCX_TLS=rc,cuda_copy,ud:aux", None),
    (H100, "UCX_TLS=rcx", WARN),
    (H100, "UCX_NET_DEVICES=mlx5_0", WARN),
    (H100, "UCX_LOG_LEVEL=debug", WARN),
    (EFA, "FI_PROVIDERS=efa", WARN),
    (EFA, "FI_PROVIDER=EFA", None),
    (EFA, "FI_MR_CACHE_MAX_COUNT=0", None),
    (H100, "TP_SOCKET_IFNAME=eth7", WARN),
    (H100, "TP_SOCKET_IFNAME=eno1", None),
    (H100, "OMPI_MCA_oob_tcp_if_include=eth7", WARN),
    (H100, "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth7", WARN),
    (H100, "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=en", None),
    (H100, "NVSHMEM_REMOTE_TRANSPORT=ibrcc", WARN),
    (H100, "NVSHMEM_SYMMETRIC_SIZE=1X", WARN),
    (H100, "NVSHMEM_SYMMETRIC_SIZE=1.5G NVSHMEM_REMOTE_TRANSPORT=ibrc", None),
    (H100, "NCCL_DMABUF_ENABLE=0", NOTE),
    (H100, "NCCL_P2P_DIRECT_DISABLE=1", NOTE),
    (H100, "NCCL_CHECK_POINTERS=1", NOTE),
    (H100, "NCCL_IB_TIMEOUT=0", WARN),
    (H100, "NCCL_IB_TIMEOUT=22", None),
    (H100, "HCOLL_MAIN_IB=mlx5_77:1", WARN),
    (H100, "HCOLL_MAIN_IB=mlx5_1:1", None),
]  # fmt: skip


@each_row(("name", "words", "severity"), TABLE)
def test_a_setting_is_as_grave_as_what_it_costs_here(name: str, words: str, severity: Severity | None) -> None:
    assert len(TABLE) > 45
    assert gravest(name, words) == severity, "; ".join(f"{f.subject} {f.message}" for f in findings(name, words))


@each_row(
    ("text", "severity"),
    [
        ("export NCCL_IB_HCA=mlx5_0\n", WARN),
        ("set NCCL_IB_HCA=mlx5_0\n", WARN),
        ("NCCL_IB_HCA = mlx5_0\n", FAIL),
        ("NCCL_IB_HCA=^mlx5_0 # keep\n", WARN),
        ("NCCL_IB_HCA=mlx5\n", NOTE),
    ],
)
def test_what_a_line_of_a_file_does_not_set_is_said(text: str, severity: Severity) -> None:
    assert gravest(H100, "", conf=text) == severity


def test_half_of_the_nics_of_google_s_plugin_is_objected_to() -> None:
    def told(number: int) -> list[Severity]:
        names = ",".join(f"eth{each}" for each in range(1, number + 1))
        words = f"NCCL_FASTRAK_IFNAME={names} NCCL_FASTRAK_CTRL_DEV=eth0"
        return [f.severity for f in findings(TCPXO, words) if f.subject == "NCCL_FASTRAK_IFNAME"]

    assert (told(4), told(6), told(8)) == ([FAIL], [WARN], [])


def test_a_family_that_no_gid_has_is_named() -> None:
    told = [f.message for f in findings(A100, "NCCL_IB_ADDR_FAMILY=AF_INET6")]
    assert any("NCCL_IB_ADDR_FAMILY=AF_INET6" in message for message in told)


def test_without_a_launcher_a_node_with_a_fabric_is_judged_for_two_nodes() -> None:
    found = report(H100, "NCCL_IB_HCA=mlx5_0", nodes=None)
    assert found.exit_code == 4
    assert found.predicted
    assert (found.predicted.now_GBps < found.predicted.healthy_GBps / 2, found.predicted.nodes) == (True, 2)
