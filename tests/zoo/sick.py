"""Machines of the zoo with one fault each: what is planted, and what must be found; and the changes that plant it.

scripts/write_captures.py writes them to tests/captures/sick as ``like`` files: the healthy machine but for the rows
that the fault changes. A finding is written ``severity id subject``.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import zoo
from ncclprobe.host import Question
from ncclprobe.model.errors import Failed, HostError, Missing, TimedOut
from ncclprobe.model.values import Struct
from zoo import system
from zoo.answers import Answers
from zoo.description import Machine
from zoo.pci import DEVICES, functions

CAPTURES = zoo.CAPTURES / "sick"
Change = Callable[[Answers], None]
STATE, SPEED = 0, 2
"""Columns of the numbers that are asked of NVLinks together; speed is in MB/s."""

_FIELDS = "165,"  # what a question about the states of links begins with
_KEPT = ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo")  # of a lost GPU NVML still tells these
_ACS_CONTROL = 0x14E  # zoo.pci puts ACS at 0x148


def edit(change: Callable[[Any], Any], *question: str | int) -> Change:
    """What `change` makes of the JSON that answers a question."""

    def changes(here: Answers) -> None:
        here.said[question] = json.dumps(change(json.loads(here.ask(*question))))

    return changes


def variables(**values: str) -> Change:
    """Variables of the environment."""
    return edit(lambda said: said | values, "env")


def torchrun(nodes: int, ranks: int = 8, **values: str) -> Change:
    """Rank 0 of torchrun on so many nodes with `ranks` ranks each."""
    counts = {"WORLD_SIZE": str(ranks * nodes), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_WORLD_SIZE": str(nodes)}
    zeros = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0")
    return variables(TORCHELASTIC_RUN_ID="4711", **counts, **zeros, **values)


def by_hand(**values: str) -> Change:
    """Rank 0 of two nodes whose variables a script has set."""
    counts = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "NNODES": "2"}
    return variables(**counts, **dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK"), "0"), **values)


def resolves(name: str, *addresses: str) -> Change:
    """What getaddrinfo finds; without addresses, that it does not know the name."""
    said: str | HostError = json.dumps({"addresses": addresses, "seconds": 0.002})
    return says(said if addresses else Failed(f"resolve {name}: Name or service not known"), "resolve", name)


def says(said: str | HostError, *question: str | int) -> Change:
    """The answer to one question."""

    def change(here: Answers) -> None:
        here.said[question] = said

    return change


def file(path: str, text: str) -> Change:
    """The content of a file, which may be new."""
    return lambda here: here.write(path, text)


def files(folder: str, texts: Mapping[str, str]) -> Change:
    """The content of files in a folder, by name."""

    def change(here: Answers) -> None:
        for name, text in texts.items():
            here.write(f"{folder}/{name}", text)

    return change


def gone(*paths: str, kind: str = "read") -> Change:
    """Files that are not there; `kind` is "elf" for a library."""
    return lambda here: here.said.update({(kind, path): Missing(f"{kind} {path}: not there") for path in paths})


def shared_library(path: str, *functions: str, version: str) -> Change:
    """A libnccl with these functions, and its version among its constants."""

    def change(here: Answers) -> None:
        system.library(here, path, "libc.so.6")
        system.says_version(here, path, version)
        here.said["elf_symbols", path, "nccl"] = json.dumps({"defined": functions, "undefined": []})

    return change


def calls(path: str, *functions: str) -> Change:
    """The functions of NCCL that a library calls."""
    return says(json.dumps({"defined": [], "undefined": functions}), "elf_symbols", path, "nccl")


def dynamic(path: str, **told: Any) -> Change:
    """Some of what a library says of itself."""
    return edit(lambda said: said | told, "elf", path)


def closed(path: str) -> Change:
    """A file that this process may not open."""
    return lambda here: here.close(path)


def processors(listed: str) -> Change:
    """The processors that this process may use."""
    path = "/proc/self/status"

    def change(here: Answers) -> None:
        said = here.ask("read", path)
        here.write(path, re.sub(r"(Cpus_allowed_list:\t).*", rf"\g<1>{listed}", said))

    return change


def device(machine: Machine, name: str, attribute: str, text: str) -> Change:
    """A file of a device on the PCI bus."""
    return lambda here: here.write(f"{DEVICES}/{functions(machine)[name].address}/{attribute}", text)


def gpu(index: int, function: str, answer: Any, *arguments: int) -> Change:
    """What NVML says of one GPU; `function` without nvmlDeviceGet."""
    return says(json.dumps(answer), "nvml", f"nvmlDeviceGet{function}", index, *arguments)


def interface(name: str, **values: Any) -> Change:
    """Some of what psutil says of an interface."""
    return edit(lambda stats: {**stats, name: stats[name] | values}, "psutil", "net_if_stats")


def no_network() -> Change:
    """A network namespace of its own, whose lo is down: `unshare --net`, a container without a network."""

    def change(here: Answers) -> None:
        stats = {"isup": False, "duplex": 0, "speed": 0, "mtu": 65536, "flags": "loopback"}
        here.said["psutil", "net_if_addrs"] = json.dumps({})
        here.said["psutil", "net_if_stats"] = json.dumps({"lo": stats})

    return change


def log(*rows: tuple[float, str]) -> Change:
    """Lines of the kernel log, each with its time in seconds since boot."""

    def change(here: Answers) -> None:
        said = json.dumps({"source": "/dev/kmsg", "lines": rows, "dropped": 0, "oldest_s": 0.0})
        here.programs["kernel_log"] = lambda _pattern: said

    return change


def _nvml(index: int, answer: Callable[[Callable[..., str], str, tuple[Any, ...]], str]) -> Change:
    """What `answer` makes of NVML's answers about one GPU: the healthy ones, the function, its arguments."""

    def change(here: Answers) -> None:
        healthy = here.programs["nvml"]

        def told(function: str, *arguments: str | int) -> str:
            mine = arguments[:1] == (index,)
            return answer(healthy, function, arguments) if mine else healthy(function, *arguments)

        here.programs["nvml"] = told

    return change


def lost(index: int) -> Change:
    """A GPU of which NVML says nothing but its name and address."""

    def answer(healthy: Callable[..., str], function: str, arguments: tuple[Any, ...]) -> str:
        if function in _KEPT:
            return healthy(function, *arguments)
        raise Failed(f"NVML {function}: GPU is lost")

    return _nvml(index, answer)


def link(index: int, number: int, column: int, value: int) -> Change:
    """One number of one NVLink, of those that are asked together: `column` is STATE or SPEED."""

    def answer(healthy: Callable[..., str], function: str, arguments: tuple[Any, ...]) -> str:
        said = healthy(function, *arguments)
        if len(arguments) < 3 or not str(arguments[1]).startswith(_FIELDS):
            return said
        values = json.loads(said)
        values[column * len(str(arguments[2]).split(",")) + number] = value
        return json.dumps(values)

    return _nvml(index, answer)


def acs(machine: Machine) -> Change:
    """Access control switched on at the lower ports of every PCI switch, as firmware does for virtual machines."""

    def change(here: Answers) -> None:
        for function in functions(machine).values():
            if function.acs and function.ids == (0x1000, 0xC030):  # SrcValid, ReqRedir, CmpltRedir, UpstreamFwd
                _space(here, function.address, _ACS_CONTROL, bytes([0x1D]))

    return change


def config(machine: Machine, name: str, offset: int, value: int) -> Change:
    """A register of 16 bits in the config space of a device."""
    return lambda here: _space(here, functions(machine)[name].address, offset, value.to_bytes(2, "little"))


def _space(here: Answers, address: str, offset: int, value: bytes) -> None:
    path = f"{DEVICES}/{address}/config"
    space = bytearray(_bytes(json.loads(here.ask("bytes", path))))
    space[offset : offset + len(value)] = value
    here.write(path, bytes(space))


def _bytes(seen: Mapping[str, Any]) -> bytes:
    data = bytearray(seen["length"])
    for at, row in seen["rows"].items():
        start = int(at, 16)
        data[start : start + len(row) // 2] = bytes.fromhex(row)
    return bytes(data)


class Plant(Struct, frozen=True):
    """One fault of the machine `like`. `finding` must be found; `also` are its other true consequences above a note.

    Nothing else above a note is found. `renamed`: in all questions and answers the first name is the second.
    """

    name: str
    planted: str
    finding: str
    changes: tuple[Change, ...]
    like: str = "hgx-h100"
    also: tuple[str, ...] = ()
    renamed: tuple[str, str] = ("", "")


def plant(
    told: str, *changes: Change, like: str = "hgx-h100", also: tuple[str, ...] = (), renamed: tuple[str, str] = ("", "")
) -> Plant:
    """Return a fault; `told` is its name, what is planted, and the finding."""
    name, planted, finding = told.split(" | ")
    return Plant(name, planted, finding, changes, like, also, renamed)


@cache
def answers(like: str, *changes: Change) -> Mapping[Question, str | HostError]:
    """What the healthy machine `like` answers after `changes`."""
    return zoo.answers(zoo.MACHINES[like], *changes)


def capture(plant: Plant) -> str:
    """The text of its capture: the rows that are not as the healthy machine's."""
    same = {json.dumps(row) for row in zoo.list_rows(answers(plant.like))}
    rows = [json.dumps(row) for row in zoo.list_rows(answers(plant.like, *plant.changes))]
    rows = [row.replace(*plant.renamed) if plant.renamed[0] else row for row in rows]
    different = [json.loads(row) for row in rows if row not in same]
    header = {"capture": 1, "node": plant.name, "origin": "synthetic", "planted": plant.planted}
    return zoo.lines([header | {"rows": len(different) + 1}, {"like": f"../{plant.like}.jsonl"}, *different])


_HGX = zoo.MACHINES["hgx-h100"]
_hgx = partial(device, _HGX)
_TORCH = f"{_HGX.software.python}/torch/lib/libtorch_cuda.so"


def _port(**texts: str) -> Change:
    return files("/sys/class/infiniband/mlx5_3/ports/1", texts)


_PEERMEM = "/sys/module/nvidia_peermem/version"
_CLIENTS = [f"/sys/kernel/mm/memory_peers/{client}/version" for client in ("nv_mem", "nv_mem_nc")]
_LINK_DOWN = "mlx5_core 0000:5c:00.0: Port: 1 Link DOWN"
RDMA = (
    plant("ib-down | a port without a cable | fail ib.state mlx5_3:1", _port(state="1: DOWN", phys_state="2: Polling")),
    plant("ib-init | a port without subnet manager | fail ib.state mlx5_3:1", _port(state="2: INIT")),
    plant("ib-one-lane | a port on one lane | fail ib.rate mlx5_3:1", _port(rate="100 Gb/sec (1X NDR)"),
          also=("warn ib.gdr GPU3",)),
    plant("ib-half-rate | a port at HDR beside seven at NDR | fail ib.rate mlx5_3:1",
          _port(rate="200 Gb/sec (4X HDR)")),
    plant("uverbs-closed | /dev/infiniband/uverbs4 does not open | fail ib.perm mlx5_4",
          closed("/dev/infiniband/uverbs4")),
    plant("ib-flaps | a link that went down four times | warn ib.losses mlx5_3",
          log(*((860000.0 + 1000 * n, _LINK_DOWN) for n in range(4)))),
    plant("no-peermem | no GPUDirect module | warn ib.gdr GPUDirect RDMA", gone(_PEERMEM, *_CLIENTS), like="dgx-1v"),
    plant("roce-mtu | MTU 1500 on one RoCE port | warn ib.roce mlx5_0:1", interface("ens1f0np0", mtu=1500),
          like="a100-bridged"),
    plant("nic-numa | a NIC on NUMA node -1 | note ib.gdr mlx5_2", _hgx("mlx5_2", "numa_node", "-1")),
)  # fmt: skip
_HANGS = TimedOut("nvidia-smi -L: no answer within 60 s")
_XID = "NVRM: Xid (PCI:0000:5b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
_REFUSED = {"clusterUuid": [0] * 16, "status": 3, "cliqueId": 0, "state": 3, "version": 0x02000024, "healthMask": 2}

GPUS = (
    plant("smi-hangs | nvidia-smi does not come back | fail gpu.smi-canary nvidia-smi",
          says(_HANGS, "run", "nvidia-smi", "-L")),
    plant("gpu-lost | a GPU that NVML has lost | fail gpu.count GPU6", lost(6)),
    plant("xid-79 | Xid 79 an hour ago | fail gpu.errors GPU3", log((860600.0, _XID))),
    plant("remap-pending | a row of memory to be remapped | warn gpu.errors GPU1",
          gpu(1, "RemappedRows", [0, 1, 1, 0])),
    plant("gpu-busy | somebody else's process on a GPU | warn gpu.busy GPU4",
          gpu(4, "ComputeRunningProcesses", [42 << 30]),
          gpu(4, "MemoryInfo", {"total": 80 << 30, "free": 37 << 30, "used": 43 << 30})),
    plant("gpu-hot | a GPU that its heat holds back | warn gpu.clocks GPU2", gpu(2, "CurrentClocksEventReasons", 0x49)),
    plant("gpu-capped | a GPU limited to 200 of 700 W | warn gpu.clocks GPU5", gpu(5, "EnforcedPowerLimit", 200000)),
    plant(
        "gpu-was-hot | a GPU that heat has held back for an hour and a half since the driver was loaded | "
        "warn gpu.clocks GPU6",
        gpu(6, "ViolationStatus", {"referenceTime": 1_700_000_000_000_000, "violationTime": 5_400_000_000_000}, 1),
    ),
    plant("gpu-replays | a GPU whose PCIe link repeats packets | warn gpu.errors GPU3",
          gpu(3, "PcieReplayCounter", 184467)),
    plant("gpu-ecc | two uncorrectable errors of a GPU's memory since its reset | fail gpu.errors GPU1",
          gpu(1, "TotalEccErrors", 2, 1, 0), gpu(1, "TotalEccErrors", 2, 1, 1)),
    plant("gpu-sram | a GPU whose SRAM NVIDIA replaces | fail gpu.errors GPU1",
          gpu(1, "SramEccErrorStatus", {"bThresholdExceeded": 1})),
    plant("gpu-ecc-off | ECC off on one GPU | warn gpu.mode GPU6", gpu(6, "EccMode", [0, 0])),
    plant("gpu-other | an H200 among H100s | warn gpu.model GPU2", gpu(2, "Name", "NVIDIA H200 NVL")),
    plant("gpu-mig-next | MIG after the next reset | warn gpu.mode GPU5", gpu(5, "MigMode", [0, 1])),
    plant("gpu-mig | a GPU left in MIG mode | warn gpu.mode GPU5", gpu(5, "MigMode", [1, 1])),
    plant("gpu-prohibited | a GPU on which nobody may compute | fail gpu.mode GPU5", gpu(5, "ComputeMode", 2)),
)  # fmt: skip
_CARDS = [f"{kind}{n}" for kind in ("GPU", "mlx5_") for n in range(8)]

BUSES = (
    plant("gpu-x8 | a GPU on 8 of 16 PCIe lanes | fail pci.link GPU3", gpu(3, "CurrPcieLinkWidth", 8),
          _hgx("GPU3", "current_link_width", "8")),
    plant("gpu-slot-x8 | a GPU in a slot of 8 lanes | warn pci.link GPU3", gpu(3, "CurrPcieLinkWidth", 8),
          gpu(3, "MaxPcieLinkWidth", 8), _hgx("GPU3", "current_link_width", "8")),
    plant("gpu-slot-gen4 | a GPU in a slot of generation 4 | warn pci.link GPU3", gpu(3, "MaxPcieLinkGeneration", 4)),
    plant("nic-reads-small | a NIC with MaxReadReq 512 and no relaxed ordering | warn pci.settings mlx5_3",
          config(_HGX, "mlx5_3", 104, 10528)),
    plant("nic-x8 | a NIC on 8 of 16 PCIe lanes | fail pci.link mlx5_3", _hgx("mlx5_3", "current_link_width", "8")),
    plant("acs | ACS at the lower ports of the PCI switches | warn pci.acs PCIe switches", acs(_HGX)),
    plant("iommu | an IOMMU that translates | warn pci.iommu IOMMU",
          *(_hgx(name, "iommu_group/type", "DMA-FQ") for name in _CARDS)),
    plant("gpu-fatal | a fatal error of a GPU on the PCI bus | warn pci.aer GPU3",
          _hgx("GPU3", "aer_dev_fatal", "Undefined 0\nDLP 0\nSDES 1\nTOTAL_ERR_FATAL 1")),
    plant("bar1-small | a GPU with a window of 256 MiB | warn pci.bar1 GPU3",
          gpu(3, "BAR1MemoryInfo", {"bar1Total": 256 << 20, "bar1Free": 0, "bar1Used": 0})),
    plant("nvlink-down | an inactive NVLink | fail nvl.links GPU5", link(5, 7, STATE, 0)),
    plant("nvlink-slow | an NVLink at half its rate | fail nvl.rate GPU5", link(5, 7, SPEED, 13281)),
    plant("fm-version | a fabric manager of another version | warn nvl.fabric nv-fabricmanager",
          says("Fabric Manager version is : 550.90.07\n", "run", "nv-fabricmanager", "--version")),
    plant("fabric-failed | a GPU whose registration with the fabric failed | fail nvl.fabric GPU2",
          gpu(2, "GpuFabricInfoV", _REFUSED)),
    plant("no-imex | no IMEX channel, on two trays | fail nvl.fabric /dev/nvidia-caps-imex-channels",
          torchrun(2, ranks=4), says("[]", "list", "/dev/nvidia-caps-imex-channels", "channel*"), like="gb200-tray"),
)  # fmt: skip
_MASTER = {"MASTER_ADDR": "hgx-h100", "MASTER_PORT": "29500"}
_TWO_NODES, _RESOLVED = (torchrun(2, **_MASTER), resolves("hgx-h100", "10.0.0.11"))

ENVIRONMENT = (
    plant("ib-disable-word | NCCL_IB_DISABLE=true | fail env.value NCCL_IB_DISABLE", variables(NCCL_IB_DISABLE="true")),
    plant("ib-disable-conf | NCCL_IB_DISABLE=true in /etc/nccl.conf | fail env.value NCCL_IB_DISABLE",
          file("/etc/nccl.conf", "NCCL_IB_DISABLE=true")),
    plant("ib-disable | NCCL_IB_DISABLE=1 on two nodes | fail env.transport NCCL_IB_DISABLE", _TWO_NODES, _RESOLVED,
          variables(NCCL_IB_DISABLE="1")),
    plant("conf-spaces | spaces around the = in /etc/nccl.conf | fail env.files NCCL_NET",
          file("/etc/nccl.conf", "NCCL_NET = IB")),
    plant("misspelt | NCCL_IB_TIMEUOT | warn env.name NCCL_IB_TIMEUOT", variables(NCCL_IB_TIMEUOT="22")),
    plant("out-of-range | NCCL_IB_TIMEOUT=60 | fail env.value NCCL_IB_TIMEOUT", variables(NCCL_IB_TIMEOUT="60")),
    plant("torch-cpu | torch without CUDA on a machine with GPUs | fail env.start torch",
          file(f"{_HGX.software.python}/torch/version.py", "__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n"),
          gone(_TORCH, kind="elf")),
    plant(
        "nccl-shadowed | an older libnccl.so.2 without its version in its name, by LD_LIBRARY_PATH | "
        "warn env.start /opt/site/lib/libnccl.so.2",
        variables(LD_LIBRARY_PATH="/opt/site/lib"),
        shared_library("/opt/site/lib/libnccl.so.2", "ncclAllReduce", version="2.19.3"),
        calls(_TORCH, "ncclAllReduce", "ncclCommSplit"),
        dynamic(_TORCH, rpath="", runpath="$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN/../../nvidia/nccl/lib"),
        also=("fail env.libraries libnccl.so.2",),
    ),
    plant(
        "plugin-glibc | a network plugin that was built for a newer system | warn env.libraries libc.so.6",
        dynamic(
            "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so", needs_versions={"libc.so.6": ["GLIBC_2.38"]}
        ),
        like="aws-p4d",
        also=("warn env.transport libnccl-net.so",),
    ),
    plant("p2p-off | NCCL_P2P_DISABLE=1 | warn env.transport NCCL_P2P_DISABLE", variables(NCCL_P2P_DISABLE="1")),
    plant("hca-hole | NCCL_IB_HCA without mlx5_3 | warn env.hca NCCL_IB_HCA",
          variables(NCCL_IB_HCA="=mlx5_0,mlx5_1,mlx5_2,mlx5_4,mlx5_5,mlx5_6,mlx5_7"), also=("warn ib.gdr GPU3",)),
    plant("hca-prefix | mlx5_1 in NCCL_IB_HCA beside a storage port mlx5_10 | warn env.hca NCCL_IB_HCA",
          variables(NCCL_IB_HCA="mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9"), like="dgx-a100",
          renamed=("mlx5_5", "mlx5_10")),
    plant("ifname-none | NCCL_SOCKET_IFNAME of an interface that is not here | fail env.ifname NCCL_SOCKET_IFNAME",
          variables(NCCL_SOCKET_IFNAME="ens3")),
    plant("no-interface | a network namespace without an interface | fail env.start interfaces", no_network(),
          also=("fail launch.names lo",)),
    plant("net-ofi | NCCL_NET=ofi beside a plugin whose network is called AWS Libfabric | fail env.start NCCL_NET",
          variables(NCCL_NET="ofi"), like="aws-p4d", also=("warn env.vendor NCCL_NET",)),
    plant("visible-twice | a GPU twice in CUDA_VISIBLE_DEVICES | fail env.visible CUDA_VISIBLE_DEVICES", torchrun(1),
          variables(CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,6")),
    plant("gid-link-local | NCCL_IB_GID_INDEX of a link-local GID, on two nodes | fail env.gid mlx5_0:1",
          torchrun(2, ranks=4), variables(NCCL_IB_GID_INDEX="1"), like="a100-bridged", also=("fail env.gid mlx5_1:1",)),
)  # fmt: skip
_LISTENER = "   1: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21874 1\n"

LAUNCH = (
    plant("master-loopback | the master's own name is 127.0.1.1 in its /etc/hosts | fail launch.master hgx-h100",
          _TWO_NODES, resolves("hgx-h100", "127.0.1.1"),
          file("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 hgx-h100\n")),
    plant("master-unknown | a MASTER_ADDR that nobody knows | fail launch.master hgx-h100", _TWO_NODES,
          resolves("hgx-h100")),
    plant("port-ephemeral | a MASTER_PORT that the kernel may hand out | warn launch.port MASTER_PORT",
          by_hand(MASTER_ADDR="hgx-h100", MASTER_PORT="40123"), _RESOLVED),
    plant("port-taken | somebody listens on MASTER_PORT | fail launch.port MASTER_PORT", by_hand(**_MASTER), _RESOLVED,
          file("/proc/net/tcp", f"  sl  local_address rem_address   st\n{_LISTENER}")),
    plant("half-set | RANK without WORLD_SIZE | fail launch.vars WORLD_SIZE", variables(RANK="0")),
)  # fmt: skip
_GROUP = "/sys/fs/cgroup/user.slice/user-0.slice/session-4.scope"
_SCALING = "/sys/devices/system/cpu/cpu0/cpufreq"

HOST = (
    plant("shm-small | /dev/shm of 64 MiB with NCCL 2.21 | fail host.shm /dev/shm",
          says(json.dumps({"total": 64 << 20, "available": 64 << 20}), "statvfs", "/dev/shm")),
    plant("memlock | 8 MiB of locked memory for a user | fail host.limits RLIMIT_MEMLOCK",
          says(json.dumps([8 << 20, 8 << 20]), "rlimit", "RLIMIT_MEMLOCK"), like="hgx-h100-user"),
    plant("one-socket | a cpuset of the second socket only | warn host.cpu GPU0", torchrun(1),
          processors("56-111,168-223"), also=tuple(f"warn host.cpu GPU{n}" for n in (1, 2, 3))),
    plant("cpu-quota | a quota of 4 processors for 8 ranks | warn host.cpu cpu quota", torchrun(1),
          file(f"{_GROUP}/cpu.max", "400000 100000")),
    plant("clock-adrift | a clock that nothing keeps right, on two nodes | warn host.timesync clock", _TWO_NODES,
          _RESOLVED, says("NTPSynchronized=no\n", "run", "timedatectl", "show", "--property=NTPSynchronized")),
    plant("governor | a governor that keeps the clock low | warn host.cpu governor",
          file(f"{_SCALING}/scaling_driver", "intel_cpufreq"), file(f"{_SCALING}/scaling_governor", "powersave")),
)  # fmt: skip

PLANTS = {plant.name: plant for plant in (*ENVIRONMENT, *LAUNCH, *RDMA, *GPUS, *BUSES, *HOST)}
