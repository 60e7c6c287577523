"""What the checks that machines, their software and clocks are equal must object to, and what they must accept."""

from ncclprobe.checks.env.fixtures import PLAIN_HOST, TWO_NETS, fabric, gpus, hcas, nccl, over, port
from ncclprobe.checks.ib.fixtures import pci
from ncclprobe.checks.sync.host import (
    ALL_FREE,
    ALL_ROOMY,
    ANY,
    DGX,
    DGXS,
    EIGHT,
    FABRICS,
    FEW,
    FREE,
    GIB,
    H100S,
    HOSTS,
    MIB,
    MOVED,
    NEWEST,
    PLAINS,
    ROOMY,
    SETTINGS,
    SEVEN,
    TREES,
    TWO_HOSTS,
    TWO_SOCKETS,
    UNLIKE,
    cpus_of,
)
from ncclprobe.checks.sync.settings import FW, GPUS, HUB, NEW, OLD, TORCH, built, flashed, offsets_of
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import Dmi, Machine
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.process import SharedMemory
from ncclprobe.facts.software import Software
from ncclprobe.model.nccl_selection import Decision
from ncclprobe.model.snapshot import Every, Job
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

OTHER = Machine(Dmi("Supermicro", "SYS-420GP"))
SMALL, LARGE, LARGER, WITH_ECC = (
    Gpus(tuple(replace(gpu, memory_bytes=gib << 30) for gpu in EIGHT.all), EIGHT.driver, EIGHT.cuda)
    for gib in (40, 80, 96, 75)
)


def _efa(state: str = "ACTIVE") -> Fabric:
    """Return four devices of a layer that NCCL leaves to a plugin, the first in this state."""
    states = {f"rdmap{n}s27": state if n == 0 else "ACTIVE" for n in range(4)}
    return fabric(*(port(name, state=each, link_layer="Unknown") for name, each in states.items()))


_NO_HCAS = Every({f"n{i}": Fabric() for i in range(4)})
_SPLIT = Every({**TWO_SOCKETS.by_node, "n3": cpus_of(28, 28, 28, 28)})
_SMALL = SharedMemory(64 * MIB, 64 * MIB)
_OTHER_DRIVER = replace(gpus(8), driver="570.86.15")


_nic_count = rows_of(fabrics=_NO_HCAS, settings=SETTINGS, interfaces=HOSTS, software=ANY, machines=DGXS, gpus=H100S)
_FIVE, _EIGHT_GIB = Every({**DGXS.by_node, "n4": DGX}), SharedMemory(8 * GIB, 8 * GIB)
_SHARED = ALL_FREE, Every({**ALL_ROOMY.by_node, "n3": _EIGHT_GIB, "n4": _SMALL, "n5": ROOMY})
_ONE, _TWO = (replace(over(""), network=Decision(None, why)) for why in ("one", "two"))
CASES: Cases = {
    "sync.clock": [
        ("WARN image: n[3-4] on n3 n4", offsets_of(0.0, 0.0, 9.0, -9.0), HUB),
        ("WARN image: n3 on n3", offsets_of(0.0, 0.0, 180.0), HUB),
        ("WARN image: n0 on n0", offsets_of(-180.0, -180.0, -180.0), HUB),
    ],
    "sync.machine/gpu-count": [
        ("FAIL unknown: n[3-4] on n3 n4", Every({**H100S.by_node, "n3": SEVEN, "n4": gpus(9)}), _FIVE, Job()),
        ("FAIL unknown: n3 on n3", Every({"n0": SEVEN, "n1": SEVEN, "n2": SEVEN, "n3": EIGHT}), DGXS, Job()),
        ("FAIL unknown: nodes", Every({"n0": EIGHT, "n1": SEVEN}), DGXS, Job()),
        (Every({"n0": EIGHT, "n1": gpus(4)}), DGXS, Job(mixed_gpus=True)),
        (Every({"n0": EIGHT, "n1": gpus(4, "NVIDIA L40S")}), Every({"n0": DGX, "n1": OTHER}), Job()),
    ],
    "sync.machine/machine-type": [
        ("WARN job: n3 on n3", H100S, Every({f"n{i}": OTHER if i == 3 else DGX for i in range(4)})),
        ("WARN job: nodes", Every({"n0": SMALL, "n1": LARGE}), Every({"n0": DGX, "n1": DGX})),
        ("WARN job: nodes", Every({"n0": LARGER, "n1": LARGE}), Every({"n0": DGX, "n1": DGX})), (H100S, DGXS),
        (Every({"n0": WITH_ECC, "n1": LARGE}), Every({"n0": DGX, "n1": DGX})),
    ],
    "sync.machine/nic-count": [
        _nic_count("FAIL node: n3 on n3", fabrics=Every({**FABRICS, "n3": hcas(7)})),
        _nic_count("FAIL unknown: nodes", fabrics=Every({"n0": hcas(8), "n1": hcas(7)})),
        _nic_count("FAIL unknown: nodes", fabrics=Every({"n0": _efa(), "n1": _efa("DOWN")})),
        _nic_count(
            "FAIL node: n3 on n3", interfaces=Every({**{f"n{i}": TWO_NETS for i in range(3)}, "n3": PLAIN_HOST})),
        _nic_count(), _nic_count(fabrics=Every({"n0": _efa(), "n1": _efa()})),
    ],
    "sync.machine/topology": [
        ("WARN unknown: n3 on n3", Every({**TREES, "n3": pci()}), _SPLIT, DGXS, H100S),
        ("WARN unknown: nodes", Every({"n0": pci(), "n1": MOVED}), TWO_SOCKETS, DGXS, H100S),
    ],
    "sync.limits/limits": [
        ("NOTE image: /dev/shm on n3", ALL_FREE, Every({**ALL_ROOMY.by_node, "n3": _EIGHT_GIB})),
        ("WARN image: /dev/shm on n4", *_SHARED), (Every({"n0": FEW, "n1": FEW}), ALL_ROOMY),
        ("WARN image: /dev/shm on n3", ALL_FREE, Every({**ALL_ROOMY.by_node, "n3": _SMALL})),
        ("WARN image: RLIMIT_MEMLOCK", Every({"n0": FREE, "n1": FEW}), ALL_ROOMY),
        (ALL_FREE, Every({"n0": ROOMY, "n1": SharedMemory(30 * GIB, 30 * GIB)})),
    ],
    "sync.versions/nccl-version": [
        ("FAIL image: nodes", Every({"n0": NEW, "n1": OLD})),
        ("FAIL image: n2 on n2", Every({"n0": NEW, "n1": NEW, "n2": Software({})})),
    ],
    "sync.versions/torch-cuda": [
        ("WARN image: torch, CUDA of torch", Every({"n0": TORCH, "n1": built("2.7.0", "12.6")}), GPUS),
        ("WARN image: driver", Every({"n0": TORCH, "n1": TORCH}), Every({"n0": gpus(8), "n1": _OTHER_DRIVER})),
        (Every({"n0": Software({}), "n1": Software({})}), GPUS),
    ],
    "sync.versions/nic-fw": [
        ("WARN image: MT_0000000838", Every({"n0": FW, "n1": flashed("28.36.1010")})),
        (Every({"n0": FW, "n1": flashed("")}),),
    ],
    "sync.network/transport": [
        ("FAIL image: nodes", Every({f"n{n}": over("IB" if n % 2 else "Socket") for n in range(6)})),
        ("UNKNOWN: the network of n[0-1] is not known: one", Every({"n0": _ONE, "n1": _TWO})),
        ("UNKNOWN: the network of n1 is not known: two", Every({"n0": over("IB"), "n1": _TWO})),
        (Every({"n0": _ONE, "n1": _ONE}),),
    ],
    "sync.machine/ignore-net-mismatch": [
        (UNLIKE, PLAINS, TWO_HOSTS, Every(dict.fromkeys(("n0", "n1"), nccl(2, 29, 7))), DGXS, H100S),
        (Every({"n0": hcas(8), "n1": hcas(8)}), PLAINS, TWO_HOSTS, NEWEST, DGXS, H100S),
    ],
}  # fmt: skip
