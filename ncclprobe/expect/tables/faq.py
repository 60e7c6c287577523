"""What is commonly believed of these numbers, what is true, and who measured it: `ncclprobe expect --beliefs`."""

from typing import Literal

from ncclprobe.model.values import Struct

ClaimVerdict = Literal["true", "misleading", "wrong", "unsupported"]
_STAS = "https://github.com/stas00/ml-engineering/blob/744d01e18b79/network/README.md"
_GOLDEN = "https://github.com/microsoft/superbench-results/blob/5e77aa785ea8/v0.4.0/Azure-NDv4-A100/baseline.json"
_GOOGLE = "https://cloud.google.com/compute/docs/gpus/gpu-network-bandwidth"
_AKS = "https://github.com/Azure/aks-rdma-infiniband/blob/700dabb4fe04/tests/expected-output.md"
_RAVEN = "https://docs.mpcdf.mpg.de/doc/computing/raven-details.html"


class Number(Struct, frozen=True):
    """A number with what it is of; `unit` is GB/s (1e9 bytes per second), Gb/s (1e9 bits per second), us or x."""

    of: str
    value: float
    unit: Literal["GB/s", "Gb/s", "us", "x"]


class Belief(Struct, frozen=True):
    """One claim, in our words, and what is true instead, in one to three sentences. `id` is stable."""

    id: str
    claim: str
    verdict: ClaimVerdict
    truth: str
    numbers: tuple[Number, ...]
    sources: tuple[str, ...]


def table() -> tuple[Belief, ...]:
    """Return every belief, the most asked first."""
    return _BELIEFS


_BELIEFS = (
    Belief(
        id="a100-75",
        claim="All-reduce over NVLink on 8 A100 should give 75 GB/s.",
        verdict="wrong",
        truth="It gives 230 to 235 GB/s of bus bandwidth from 8 GiB on. 75 GB/s is what the same machine shows at "
        "messages of 5 to 6 MiB, or two of them over EFA; as a mark it passes a node at a third of its speed.",
        numbers=(
            Number("8 A100, 8 GiB, mean of 1,939 nodes", 235.05, "GB/s"),
            Number("the ceiling as NCCL counts 12 links", 240.0, "GB/s"),
            Number("2 x p4de over EFA, 2 GiB", 78.3, "GB/s"),
        ),
        sources=(_GOLDEN, _STAS, "https://github.com/NVIDIA/nccl-tests/issues/149"),
    ),
    Belief(
        id="a100-600",
        claim="NVLink on A100 is 600 GB/s, so that is what a collective should come near.",
        verdict="misleading",
        truth="600 counts both directions: it is 300 each way, of which a ring reaches 230 to 235. Where four GPUs are "
        "joined without a switch (Raven, Polaris), each pair has 4 of the 12 links, 100 GB/s each way.",
        numbers=(
            Number("one direction", 300.0, "GB/s"),
            Number("8 A100, ring, 8 GiB", 235.0, "GB/s"),
            Number("one pair of a 4-GPU mesh, one direction", 100.0, "GB/s"),
        ),
        sources=(_STAS, _RAVEN),
    ),
    Belief(
        id="a3-high-200",
        claim="An A3 High VM has 200 Gb/s.",
        verdict="wrong",
        truth="It has 1,000 Gb/s: four NICs of 200 for the GPUs, and one for the host. 200 is one NIC. TCPX carries "
        "about 71 GB/s of the 100 between two VMs.",
        numbers=(
            Number("for the GPUs", 800.0, "Gb/s"),
            Number("with the host's NIC", 1000.0, "Gb/s"),
            Number("all_gather, 2 VMs, 512 MiB", 71.0, "GB/s"),
        ),
        sources=(_GOOGLE, "https://github.com/GoogleCloudPlatform/cluster-toolkit/blob/1047080375af/examples"),
    ),
    Belief(
        id="a3-mega-1600",
        claim="An A3 Mega VM has 1,600 Gb/s over GPUDirect-TCPX.",
        verdict="misleading",
        truth="1,600 Gb/s are the eight NICs of the GPUs, 1,800 with the host's; and the transport is TCPXO (FasTrak), "
        "not TCPX. An all-reduce of two VMs shows 339 GB/s, more than the wire, because a tree moves less than busbw "
        "counts: judge the fabric by all_gather or a forced ring.",
        numbers=(
            Number("for the GPUs", 1600.0, "Gb/s"),
            Number("with the host's NIC", 1800.0, "Gb/s"),
            Number("all_gather, 2 VMs, 8 GiB", 188.0, "GB/s"),
            Number("all_reduce, 2 VMs, 8 GiB", 339.0, "GB/s"),
            Number("without the plugin, over sockets", 4.0, "GB/s"),
        ),
        sources=(
            _GOOGLE,
            "https://github.com/GoogleCloudPlatform/cluster-toolkit/blob/1047080375af/examples/gke-a3-megagpu/README.md",
            "https://github.com/NVIDIA/aicr/blob/bc05c6be7859/demos/workloads/training/gke-nccl-test-tcpxo.yaml",
        ),
    ),
    Belief(
        id="hdr-25",
        claim="InfiniBand HDR is 25 GB/s.",
        verdict="true",
        truth="For one port in one direction, of which 24.6 are measured. It is the port's, not the GPU's: on Raven "
        "four GPUs share one. 50 GB/s would be both directions; HDR100 is half of it.",
        numbers=(
            Number("ib_write_bw, one port", 24.57, "GB/s"),
            Number("ib_read_bw, one port", 24.69, "GB/s"),
            Number("one GPU's share of a port on Raven", 6.25, "GB/s"),
        ),
        sources=(_AKS, _RAVEN),
    ),
    Belief(
        id="pcie-instead-of-nvlink",
        claim="PCIe instead of NVLink costs 20 to 30 %.",
        verdict="unsupported",
        truth="Of a training step that may be so, but no claim of it has a source. Of a large collective it costs "
        "nine tenths: 8 GPUs reach 28 to 41 GB/s over PCIe Gen5 where NVLink 4 gives 480, and a bridged pair of A100 "
        "that reaches 208 falls to 20 once a third GPU must be reached over PCIe.",
        numbers=(
            Number("8 x RTX PRO 6000, PCIe Gen5 with P2P, 2 GiB", 41.1, "GB/s"),
            Number("8 x RTX 5090, PCIe Gen5 without P2P", 28.0, "GB/s"),
            Number("8 x H100, NVLink 4 with NVLS, 8 GiB", 480.0, "GB/s"),
            Number("3 A100 PCIe, across bridged pairs", 20.0, "GB/s"),
            Number("2 A100 PCIe, bridged", 208.0, "GB/s"),
        ),
        sources=(
            "https://github.com/voipmonitor/rtx6kpro/blob/29f3863a371d/hardware/pcie-bandwidth.md",
            "https://github.com/NVIDIA/nccl/issues/1639",
            "https://github.com/NVIDIA/nccl-tests/issues/178",
        ),
    ),
    Belief(
        id="sockets-instead-of-rdma",
        claim="Without RDMA a job is somewhat slower.",
        verdict="wrong",
        truth="Over the same InfiniBand wire, sockets reach 3.2 GB/s where RDMA reaches 187: one sixtieth, and "
        "nothing fails. A3 Mega falls from 339 to 4 without its plugin. A rate of 3 to 6 GB/s on a fast fabric is the "
        "signature.",
        numbers=(
            Number("2 x 8 A100, 8 HDR, RDMA, 8 GiB", 187.2, "GB/s"),
            Number("the same over IPoIB sockets", 3.15, "GB/s"),
            Number("loss", 59.4, "x"),
            Number("smallest call, RDMA", 37.4, "us"),
            Number("smallest call, sockets", 77.1, "us"),
        ),
        sources=(f"{_AKS}#L20", f"{_AKS}#L396"),
    ),
    Belief(
        id="busbw-above-the-wire",
        claim="A bus bandwidth above the link's speed is a measuring error.",
        verdict="wrong",
        truth="Bus bandwidth counts the traffic of a ring. With NVLS the switches add, so 8 H100 show 480 GB/s on "
        "links of 450, and trees between two nodes pass more than their NICs carry. 370 on 8 H100 means NVLS is off, "
        "not that a link is broken.",
        numbers=(
            Number("8 H100 with NVLS", 480.0, "GB/s"),
            Number("8 H100, ring", 367.0, "GB/s"),
            Number("their links, one direction", 450.0, "GB/s"),
        ),
        sources=(
            _STAS,
            "https://github.com/NVIDIA/nccl-tests/issues/212",
            "https://github.com/NVIDIA/nccl-tests/issues/309",
        ),
    ),
    Belief(
        id="p4d-infiniband",
        claim="AWS p4d has InfiniBand, and Google Cloud has none, so NCCL_IB_DISABLE=1 does no harm there.",
        verdict="wrong",
        truth="p4d has EFA, which NCCL reaches through the aws-ofi-nccl plugin only. Google's A3 Ultra, A4 and A4X "
        "have RoCE, which is the same transport to NCCL: switching it off there throws RDMA away.",
        numbers=(Number("all_gather, 2 x A3 Ultra over RoCE, 8 GiB", 330.0, "GB/s"),),
        sources=(
            "https://github.com/aws/aws-ofi-nccl/blob/2daf7d303aa1/src/platform-aws.cpp",
            _GOOGLE,
        ),
    ),
    Belief(
        id="latency-100x",
        claim="Latency between nodes is 100 to 1,000 times that over NVLink.",
        verdict="unsupported",
        truth="A small all-reduce takes 1.1 to 5 times as long on two nodes as on one: most of it is launch and "
        "synchronisation, in a node too.",
        numbers=(
            Number("8 A100, one node", 35.5, "us"),
            Number("16 A100, two nodes over HDR", 40.0, "us"),
            Number("16 A100, two nodes over EFA", 162.0, "us"),
            Number("8 H100, one node", 15.0, "us"),
            Number("16 H100, two nodes over EFA", 69.0, "us"),
        ),
        sources=(
            _GOLDEN,
            f"{_AKS}#L20",
            "https://github.com/aws-samples/awsome-distributed-training/blob/7217859f67bc/micro-benchmarks/nccl-tests/README.md",
        ),
    ),
)
