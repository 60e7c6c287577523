"""What NVML and nvidia-smi say, as the child of ncclprobe.host.nvml_child would pass it on.

Shapes of the answers: nvml.h as nvidia-ml-py declares it (structures by member, sets as 64-bit words, fields by
number), and ncclprobe/host/nvml_server.py. NVML's error words are nvidia-ml-py's. Texts of nvidia-smi: the grammar that
tests/fake_topo.py writes down for ``topo -m``; ``nvlink -s`` as leptonai/gpud's test data has it (fabric-manager/
testdata/nvidia-smi.nvlink.status.a100; empty without NVLink, …status.a10).
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from ncclprobe.model.errors import Failed, Missing
from zoo.answers import Answers
from zoo.description import Machine
from zoo.pci import bar1_bytes, everyone, functions

_WORDS = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}  # NVML_P2P_STATUS_…
_REMOTES = {"GPU": 0, "npu": 1, "switch": 2}  # NVML_NVLINK_DEVICE_TYPE_…
_NO, _OLD, _BAD = "Not Supported", "Function Not Found", "Invalid Argument"
_LINK_COUNT = 91
_PER_LINK = {164: "speed", 165: "state", 166: "version", 161: "errors", 162: "errors", 163: "errors"}
_NVLINK5 = {215, 219}
_LANES = {84: "speed", 132: "speed", **dict.fromkeys((46, 108, 53, 114, 32, 96), "errors")}
_CLUSTER = bytes.fromhex("4e5631c0ffee4d0d8f9a1d2c3b4a5968")
_FABRIC_SWITCH = "0000FFFF:FF:FF.0"  # NVSwitches that this machine does not show
_NO_DRIVER = (
    "NVML: libnvidia-ml.so.1: cannot open shared object file: No such file or directory: "
    "no NVIDIA driver here, or a container that was started without GPUs"
)


class Refusal(Exception):
    """NVML answers with an error; its words."""


def describe(machine: Machine, here: Answers) -> None:
    """NVML, nvidia-smi, and the driver's own file and device nodes."""
    if not machine.gpu:
        here.said["nvml", "nvmlDeviceGetCount"] = Missing(_NO_DRIVER)
        return
    box = Box(machine)
    here.programs["nvml"] = box.answer
    listed = [f"GPU {n}: {machine.gpu.name} (UUID: {uuid(machine, n)})\n" for n in range(machine.gpus)]
    here.run("nvidia-smi -L", "".join(listed))
    here.run("nvidia-smi topo -m", matrix(machine))
    here.run("nvidia-smi nvlink -s", _status(machine))
    for name in ("ctl", "-uvm", "-uvm-tools", *map(str, range(machine.gpus))):
        here.write(f"/dev/nvidia{name}", "")
    _driver(machine, here)


def _driver(machine: Machine, here: Answers) -> None:
    version, arch = machine.software.driver, machine.processors.arch
    here.write(
        "/proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {arch}  {version}  Release Build  (dvs-builder@U16)\n"
        if machine.software.open_driver
        else f"NVRM version: NVIDIA UNIX {arch} Kernel Module  {version}  Sat Aug 19 01:15:15 UTC 2023\n",
    )
    if machine.software.fabric_manager:
        here.run("nv-fabricmanager --version", f"Fabric Manager version is : {version}\n")
        here.write("/run/nvidia-fabricmanager/nv-fabricmanager.pid", "3117")
        here.write("/proc/3117/comm", "nv-fabricmanage")
    if machine.cluster:
        here.write("/dev/nvidia-caps-imex-channels/channel0", "")


def uuid(machine: Machine, index: int) -> str:
    """One UUID per GPU and machine."""
    return f"GPU-{sum(map(ord, machine.name)):08x}-0000-4000-8000-{index:012x}"


class Box:
    """One machine's NVML."""

    def __init__(self, machine: Machine) -> None:
        assert machine.gpu
        self.machine, self.gpu = machine, machine.gpu
        found = functions(machine)
        self.places = {name: f"0000{found[name].address.upper()}" for name in found if not name.startswith("pci")}
        self.numa = [found[f"GPU{n}"].numa for n in range(machine.gpus)]
        self.driver = int(machine.software.driver.partition(".")[0])
        self.known = {**self._fixed(), **self._of_models(), **self._of_each()}

    def answer(self, function: str, *arguments: str | int) -> str:
        """The answer as JSON; Missing for a function that the library lacks, Failed for other refusals.

        A KeyError is a function that the zoo was never told of.
        """
        known = self.known[function]
        try:
            return json.dumps(known(*arguments) if callable(known) else known)
        except Refusal as refusal:
            kind = Missing if str(refusal) == _OLD else Failed
            raise kind(f"NVML {function}: {refusal}") from None

    def _fixed(self) -> dict[str, Any]:
        """What is the same for every GPU."""
        software, gpu, memory = self.machine.software, self.gpu, self.gpu.memory_gib << 30
        return {
            "nvmlDeviceGetCount": self.machine.gpus,
            "nvmlSystemGetCudaDriverVersion": software.cuda,
            "nvmlSystemGetDriverVersion": software.driver,
            "nvmlSystemGetNVMLVersion": f"{software.cuda // 1000}.{software.driver}",
            "nvmlDeviceGetName": gpu.name,
            "nvmlDeviceGetCudaComputeCapability": list(gpu.capability),
            "nvmlDeviceGetMemoryInfo": {"total": memory, "free": memory - (600 << 20), "used": 600 << 20},
            "nvmlDeviceGetBAR1MemoryInfo": {"bar1Total": bar1_bytes(self.machine), "bar1Free": 0, "bar1Used": 0},
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetPersistenceMode": 0 if gpu.graphics else 1,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 1,  # idle
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetEnforcedPowerLimit": gpu.watts * 1000,
            "nvmlDeviceGetPowerManagementDefaultLimit": gpu.watts * 1000,
            "nvmlDeviceGetTemperatureThreshold": 92,
        }

    def _of_models(self) -> dict[str, Any]:
        """What some GPUs and drivers refuse. No source tells the first driver that has the state of the SRAM."""
        gpu, idle = self.gpu, {"referenceTime": 1_700_000_000_000_000, "violationTime": 0}
        sram = _unless(gpu.ecc and gpu.capability >= (8, 0), {"bThresholdExceeded": 0})
        width = _unless(gpu.pcie, 16)
        return {
            "nvmlDeviceGetEccMode": _unless(gpu.ecc, [1, 1]), "nvmlDeviceGetTotalEccErrors": _unless(gpu.ecc, 0),
            "nvmlDeviceGetSramEccErrorStatus": _unless(self.driver >= 535, sram, _OLD),
            "nvmlDeviceGetRemappedRows": _unless(gpu.ecc and gpu.pcie != 3, [0, 0, 0, 0]),
            "nvmlDeviceGetMigMode": _unless(gpu.mig, [0, 0]),
            "nvmlDeviceGetCurrPcieLinkGeneration": _unless(gpu.pcie, 1),
            "nvmlDeviceGetMaxPcieLinkGeneration": _unless(gpu.pcie, gpu.pcie), "nvmlDeviceGetCurrPcieLinkWidth": width,
            "nvmlDeviceGetMaxPcieLinkWidth": width, "nvmlDeviceGetPcieReplayCounter": _unless(gpu.pcie, 0),
            "nvmlDeviceGetCurrentClocksEventReasons": _unless(not self._old, 1, _OLD),
            "nvmlDeviceGetApplicationsClock": _unless(not gpu.graphics, 1410),
            "nvmlDeviceGetViolationStatus": _unless(not gpu.graphics, idle),
        }  # fmt: skip

    def _of_each(self) -> dict[str, Any]:
        """What is each GPU's own."""
        nodes, remotes = self.machine.processors.nodes, self.machine.remotes
        every = everyone(self.machine)
        return {
            "nvmlDeviceGetUUID": lambda index: uuid(self.machine, index),
            "nvmlDeviceGetPciInfo": lambda index: {"busId": self.places[f"GPU{index}"]},
            "nvmlDeviceGetTemperature": lambda index, sensor: 30 + index % 4,
            "nvmlDeviceGetCpuAffinity": lambda index, words: _set(_cpus(nodes.get(self.numa[index]) or every), words),
            "nvmlDeviceGetMemoryAffinity": lambda index, words, scope: _set([max(self.numa[index], 0)], words),
            "nvmlDeviceGetGpuFabricInfoV": lambda index: {**self._fabric(), "version": 0x02000024, "healthMask": 2},
            "nvmlDeviceGetGpuFabricInfo": lambda index: self._fabric(),
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetNvLinkState": lambda index, links: [1 for _ in _numbers(links)],
            "nvmlDeviceGetNvLinkVersion": lambda index, links: [self.gpu.link_version for _ in _numbers(links)],
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda index, links: [
                next(code for start, code in _REMOTES.items() if remotes[index][link].startswith(start))
                for link in _numbers(links)
            ],
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda index, links: [
                self._end(link, remotes[index][link]) for link in _numbers(links)
            ],
            "nvmlDeviceGetP2PStatus": self._p2p,
        }

    @property
    def _old(self) -> bool:
        """Whether the library knows neither links by scope nor fabrics (what driver 450 does not have)."""
        return self.driver < 460

    def _fabric(self) -> dict[str, Any]:
        if self._old:
            raise Refusal(_OLD)
        member, state = self.machine.cluster, 3 if self.gpu.fabric else 0
        uuids = list(_CLUSTER) if member else [0] * 16
        return {"clusterUuid": uuids, "status": 0, "cliqueId": 32766 if member else 0, "state": state}

    def _fields(self, index: int, fields: str, scopes: str) -> list[Any]:
        wanted = [(field, scope) for field in _numbers(fields) for scope in _numbers(scopes)]
        return _each(lambda pair: self._field(index, *pair), wanted)

    def _field(self, index: int, field: int, scope: int) -> int:
        links = len(self.machine.remotes[index]) if self.machine.remotes else 0
        if field == _LINK_COUNT:
            return links or _refuse(_NO)
        first = next((start for start in _LANES if start <= field < start + 6), 0)
        if first:
            link = field - first + (6 if first in (132, 108, 114, 96) else 0)
            return self._of_link(_LANES[first], link, links)
        if self._old or (field in _NVLINK5) != (self.gpu.recovery and field not in (164, 165, 166)):
            raise Refusal(_NO)
        return self._of_link(_PER_LINK.get(field, "errors"), scope, links)

    def _of_link(self, what: str, link: int, links: int) -> int:
        if link >= links:
            raise Refusal(_BAD)
        return {"speed": self.gpu.link_mbps, "state": 1, "version": self.gpu.link_version, "errors": 0}[what]

    def _end(self, link: int, end: str) -> str:
        """Where a link leads: NVSwitches share the links out where they are on the bus."""
        switches = [place for name, place in self.places.items() if name.startswith("nvswitch")]
        if end == "switch":
            return switches[link % len(switches)] if switches else _FABRIC_SWITCH
        return self.places[end]

    def _p2p(self, index: int, peers: str, capability: int) -> list[Any]:
        words = self.machine.words
        joined = [words[f"GPU{index}", f"GPU{peer}"].startswith("NV") for peer in _numbers(peers)]
        otherwise = "NS" if capability == 2 else self.machine.p2p
        return [_WORDS["OK" if direct else otherwise] for direct in joined]


def _refuse(words: str) -> Any:
    raise Refusal(words)


def _unless(known: object, answer: Any, refusal: str = _NO) -> Any:
    """The answer, or a function that refuses."""
    return answer if known else lambda *_: _refuse(refusal)


def _each(work: Callable[[Any], Any], things: Iterable[Any]) -> list[Any]:
    """Each answer, and in its place the refusal of each that is refused."""
    found: list[Any] = []
    for thing in things:
        try:
            found.append(work(thing))
        except Refusal as refusal:
            found.append({"refused": "Failed", "why": str(refusal)})
    return found


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _cpus(listed: str) -> list[int]:
    """The numbers of a list such as ``0-3,8``."""
    parts = [part.split("-") for part in listed.split(",")]
    return [cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)]


def _set(members: Iterable[int], words: int) -> list[int]:
    mask = sum(1 << member for member in members)
    return [mask >> 64 * word & 0xFFFFFFFFFFFFFFFF for word in range(words)]


def matrix(machine: Machine) -> str:
    """``nvidia-smi topo -m``, in the form of the driver's time."""
    numbered = int(machine.software.driver.partition(".")[0]) >= 510
    names = machine.columns
    nics = [name for name in names if not name.startswith("GPU")]
    labels = {name: f"NIC{nics.index(name)}" if name in nics and numbered else name for name in names}
    titles = ["CPU Affinity", "NUMA Affinity", *(["GPU NUMA ID"] if numbered else [])]
    lines = ["\t\x1b[4m" + "\t".join((*labels.values(), *titles)) + "\x1b[0m"]
    found, words = functions(machine), machine.words
    for name in names:
        cells = "".join("\t" + (" X " if one == "X" else one) for one in (words[name, n] for n in names))
        tail = "\t" * (4 if numbered else 2) if name in nics else _tail(machine, found[name].numa, numbered)
        lines.append(labels[name] + cells + tail)
    lines += ["", "Legend:", "", "  X    = Self", "  NV#  = Connection traversing a bonded set of # NVLinks"]
    lines += ["", "NIC Legend:", "", *(f"  {labels[n]}: {n}" for n in nics)] if nics and numbered else []
    return "\n".join(lines) + "\n"


def _tail(machine: Machine, numa: int, numbered: bool) -> str:
    cpus = machine.processors.nodes.get(numa) or everyone(machine)
    return f"\t{cpus}\t{numa if numa >= 0 else chr(9) + 'N/A'}" + ("\t\tN/A" if numbered else "")


def _status(machine: Machine) -> str:
    assert machine.gpu
    lines = []
    for index, links in enumerate(machine.remotes):
        lines.append(f"GPU {index}: {machine.gpu.name} (UUID: {uuid(machine, index)})")
        lines += [f"\t Link {link}: {machine.gpu.link_mbps / 1000:.6g} GB/s" for link in range(len(links))]
    return "".join(f"{line}\n" for line in lines)
