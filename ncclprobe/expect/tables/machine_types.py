"""What is known of a machine type: how it is recognised, what it is made of, what runs on it have reached."""

from ncclprobe.expect.system import Network, NicPath, NodeSystem, NvlinkFabric, Processor
from ncclprobe.expect.tables import gpus
from ncclprobe.model.values import Struct

ALGORITHMS = ("ring", "tree", "nvls", "nvlstree", "sharp")


class Match(Struct, frozen=True):
    """What of a machine's facts says that it is this type: everything given must fit (:mod:`.recognise`).

    `cloud` is as facts.machine spells it, `vendor` DMI's sys_vendor, `products` its product_name, whole or its first
    words, `cpus` one word of the processor's name. `elsewhere`: no cloud, and no machine of NVIDIA's own. `twins` are
    types that no fact tells from this one. `by_name_only`: why nothing can be recognised, which excludes all else.
    """

    gpu_names: tuple[str, ...] = ()
    cloud: str = ""
    vendor: str = ""
    products: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    elsewhere: bool = False
    twins: tuple[str, ...] = ()
    by_name_only: str = ""


class NodeLinks(Struct, frozen=True):
    """What a node is made of: see :class:`~ncclprobe.expect.system.NodeSystem` for each name; None: not known.

    `network_total_gbps` counts the host's own NIC too. `unverified` are names of fields that no source states.
    """

    gpus: int
    fabric: NvlinkFabric
    source: str
    nvlinks: int
    domain_gpus: int
    nvls: bool
    pcie_GBps: float
    p2p: bool
    nics: int | None = None
    nic_gbps: float | None = None
    network: Network | None = None
    gdr: bool = False
    nic_path: NicPath = "PXB"
    processor: Processor = "unknown"
    sockets: int = 1
    network_total_gbps: float | None = None
    unverified: tuple[str, ...] = ()


class Published(Struct, frozen=True):
    """A published bus bandwidth of this type, and its threshold where the source gives one.

    For `op` on `nodes` nodes with `gpus` of each, sizes `min_bytes` to `max_bytes`, both included. `algorithm` is
    empty where it does not matter.
    """

    op: str
    gpus: int
    nodes: int
    min_bytes: int
    max_bytes: int
    busbw_GBps: float
    source: str
    why: str
    threshold_GBps: float | None = None
    algorithm: str = ""

    @property
    def ranks(self) -> int:
        """Return one per GPU."""
        return self.gpus * self.nodes

    def overlaps(self, other: "Published") -> bool:
        """Return whether some case is covered by both."""
        same = (self.op, self.gpus, self.nodes) == (other.op, other.gpus, other.nodes)
        return same and self.min_bytes <= other.max_bytes and other.min_bytes <= self.max_bytes


class Latency(Struct, frozen=True):
    """How long a small call took, up to `max_bytes`; `high_us` is the longest that its source calls normal."""

    op: str
    gpus: int
    nodes: int
    max_bytes: int
    time_us: float
    source: str
    why: str
    high_us: float | None = None


class MachineType(Struct, frozen=True):
    """One type of machine. `gpu` is NVML's name of the product that it is described with.

    `board` is the type with the same GPUs on the same baseboard, whose numbers for one node hold here too; where both
    say something, its own do. `origin`: the distribution of a site's own type; empty: it comes with ncclprobe.
    """

    name: str
    vendor: str
    gpu: str
    match: Match
    links: NodeLinks
    board: str = ""
    published: tuple[Published, ...] = ()
    latencies: tuple[Latency, ...] = ()
    title: str = ""
    note: str = ""
    origin: str = ""

    def system(self) -> NodeSystem:
        """Return the machine as the cost model sees it."""
        gpu, links = gpus.table()[self.gpu], self.links
        return NodeSystem(
            name=self.name,
            gpu=gpu.name,
            compute_capability=gpu.compute_capability,
            gpus=links.gpus,
            nvlinks=links.nvlinks,
            nvlink_GBps=gpu.nccl_nvlink_GBps if links.nvlinks else 0.0,
            fabric=links.fabric,
            domain_gpus=links.domain_gpus,
            nvls=links.nvls,
            pcie_GBps=links.pcie_GBps,
            p2p=links.p2p,
            processor=links.processor,
            sockets=links.sockets,
            nics=links.nics or 0,
            nic_gbps=links.nic_gbps or 0.0,
            nic_path=links.nic_path,
            network=links.network,
            gdr=links.gdr,
            source=links.source,
        )
