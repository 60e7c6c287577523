"""GPUs, as NVML shows them to this process. Needs no privilege beyond access to /dev/nvidia*.

If NVML is unavailable (nvidia-ml-py does not match, or the library is missing), nvidia-smi provides the data. Meanings
and numbers are nvml.h's, as nvidia-ml-py 13.615.71 declares them and NVIDIA's NVML reference explains them.

Every field is read on its own and is a value, or ``Absent`` with NVML's own reason: `unsupported` is true if this GPU
does not have the field, which is usually a fact in itself; ``refused`` is "Missing" if the library is too old for the
function and "Denied" if the function needs privileges.

PeerAccess holds which GPUs may access each other's memory: what ``nvidia-smi topo -p2p`` prints.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ncclprobe.facts import nvidia_smi
from ncclprobe.facts.field import attempt, missing
from ncclprobe.facts.pci import normal
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import REFUSALS, Denied, Failed, HostError, Missing, NotCaptured, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field, replace

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

T = TypeVar("T")
NOT_ASKED = Absent("not asked")


def ask(host: Host, parse: Callable[[Any], T], function: str, *arguments: str | int) -> T:
    """Ask NVML and parse the answer. Raises HostError, and ParseError if `parse` fails.

    `parse` must be a module-level function that returns an immutable value: answers are cached, so equal GPUs on one
    node and across a fleet share it.
    """
    return _parsed(parse, function, host.ask("nvml", function, *arguments))  # type: ignore[no-any-return]


@lru_cache(8192)
def _parsed(parse: Callable[[Any], Any], function: str, text: str) -> Any:
    return _read(parse, function, text)


def _read(parse: Callable[[Any], T], function: str, text: str) -> T:
    try:
        return parse(json.loads(text))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ParseError(f"NVML {function}: {text[:80]!r}: {error}") from None


def learn(host: Host, parse: Callable[[Any], T], function: str, *arguments: str | int, older: str = "") -> T | Absent:
    """Like :func:`ask`, but return Absent on failure. `older` is asked if the library lacks `function`."""
    field = attempt(lambda: ask(host, parse, function, *arguments))
    return learn(host, parse, older, *arguments) if older and missing(field) else field


def several(
    host: Host, parse: Callable[[Any], T], count: int, function: str, *arguments: str | int
) -> tuple[T | Absent, ...]:
    """Read `count` fields with one question, whose argument is made by :func:`listed` and whose answer is a list."""
    found = attempt(lambda: _columns(parse, count, function, host.ask("nvml", function, *arguments)))
    return (found,) * count if isinstance(found, Absent) else found


@lru_cache(8192)
def _columns(parse: Callable[[Any], T], count: int, function: str, text: str) -> tuple[T | Absent, ...]:
    def one(item: Any) -> T | Absent:
        if isinstance(item, dict) and item.get("refused") in REFUSALS:
            return Absent(f"NVML {function}: {item['why']}", item["refused"])
        return parse(item)

    def all_of(items: Any) -> tuple[T | Absent, ...]:
        if not isinstance(items, list) or len(items) != count:
            raise ValueError(f"not a list of {count}")
        return tuple(map(one, items))

    return _read(all_of, function, text)


def listed(numbers: Iterable[int]) -> str:
    """Join numbers into one argument for a question about all of them."""
    return ",".join(map(str, numbers))


def unsupported(field: object) -> bool:
    """Return whether NVML reports that this GPU lacks the field (NVML_ERROR_NOT_SUPPORTED)."""
    return isinstance(field, Absent) and field.why.endswith("Not Supported")


def number(value: Any) -> int:
    """Return a non-negative whole number. Raises TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError("not a whole number")
    return value


def text(value: Any) -> str:
    """Return text. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def members(words: list[int]) -> tuple[int, ...]:
    """Return the members of a bit set that NVML gives as 64-bit words, lowest first."""
    found: list[int] = []
    for place, word in enumerate(words):
        digits = f"{number(word):b}"[::-1][:64]
        found += [64 * place + bit for bit, digit in enumerate(digits) if digit == "1"]
    return tuple(found)


ComputeMode = Literal["default", "exclusive-thread", "prohibited", "exclusive-process"]
FabricState = Literal["not-supported", "not-started", "in-progress", "completed"]
_COMPUTE_MODES: tuple[ComputeMode, ...] = ("default", "exclusive-thread", "prohibited", "exclusive-process")
_FABRIC_STATES: tuple[FabricState, ...] = ("not-supported", "not-started", "in-progress", "completed")
_REASONS = (  # nvmlClocksEventReason…, from bit 0
    *("gpu-idle", "applications-clocks-setting", "sw-power-cap", "hw-slowdown", "sync-boost"),
    *("sw-thermal-slowdown", "hw-thermal-slowdown", "hw-power-brake-slowdown", "display-clock-setting"),
)
_TROUBLES = {  # NVML_GPU_FABRIC_HEALTH_MASK_…: two bits each, of which 1 says that it is so and 2 that it is not
    0: "degraded-bandwidth",
    2: "route-recovery",
    4: "route-unhealthy",
    6: "access-timeout-recovery",
}
_WORDS = 16  # of 64 bits: room for 1,024 processors or NUMA nodes; too little is refused, never cut off
_UNCORRECTED, _VOLATILE, _AGGREGATE = 1, 0, 1  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_SM, _OF_THE_CHIP, _SLOWDOWN = 1, 0, 1  # nvmlClockType_t, nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t
_THERMAL = 1  # nvmlPerfPolicyType_t
SLOWED = ("hw-slowdown", "sw-thermal-slowdown", "hw-thermal-slowdown", "hw-power-brake-slowdown")
"""NVML's throttle reasons, except the user's settings and idling."""
GONE = ("GPU is lost", "GPU requires restart", "GPU requires reset")  # NVML_ERROR_GPU_IS_LOST and _RESET_REQUIRED


class GpuFabric(Struct, frozen=True, tag=True):
    """A GPU's registration with the NVSwitch fabric.

    `status` is NVML's error code for it, meaningful once `state` is "completed" (0: success). `cluster` is a UUID, all
    zeros if the fabric belongs to a single machine (HGX). With a real UUID, GPUs of equal `cluster` and `clique` reach
    each other by NVLink across machines (MNNVL). `troubles` is Absent if the library is too old for it.
    """

    state: FabricState
    status: int = 0
    cluster: str = ""
    clique: int = 0
    troubles: tuple[str, ...] | Absent = NOT_ASKED


class Gpu(Struct, frozen=True):
    """One GPU. `pci` is its address (``00000000:07:00.0``), `lost` why NVML cannot read it, empty if it can.

    The PCIe maxima are those of GPU and slot together; an idle GPU lowers its generation. `mig_pending` and
    `ecc_pending` are the state after the next reset or reboot. `ecc_since_reset` and `ecc_ever` count uncorrectable
    memory errors since the driver was loaded and over the GPU's life. `sram_worn`: its SRAM has had more of them than
    NVIDIA allows. `throttle` are NVML's reasons for the current clocks ("gpu-idle", "hw-slowdown" …). `processes` maps
    each process that computes on it to the bytes it uses (None: unknown). `cpus` and `numa_nodes` are the machine's
    nearest ones. `power_limit_W` is the lowest limit in force, `clock_MHz` the highest clock of the processors,
    `slowdown_C` the temperature that halves it. `pcie_replays` counts since the driver was loaded; `hot_s` is the time
    in seconds for which heat has lowered the clocks. `compute` is the compute capability ((9, 0): Hopper), which NCCL's
    rules use.
    """

    index: int
    name: str = ""
    uuid: str = ""
    pci: str = ""
    memory_bytes: int | Absent = NOT_ASKED
    lost: str = ""
    memory_used_bytes: int | Absent = NOT_ASKED
    bar1_bytes: int | Absent = NOT_ASKED
    pcie_generation: int | Absent = NOT_ASKED
    pcie_width: int | Absent = NOT_ASKED
    pcie_max_generation: int | Absent = NOT_ASKED
    pcie_max_width: int | Absent = NOT_ASKED
    compute_mode: ComputeMode | Absent = NOT_ASKED
    mig: bool | Absent = NOT_ASKED
    mig_pending: bool | Absent = NOT_ASKED
    persistence: bool | Absent = NOT_ASKED
    ecc: bool | Absent = NOT_ASKED
    ecc_pending: bool | Absent = NOT_ASKED
    ecc_since_reset: int | Absent = NOT_ASKED
    ecc_ever: int | Absent = NOT_ASKED
    sram_worn: bool | Absent = NOT_ASKED
    remap_pending: bool | Absent = NOT_ASKED
    remap_failed: bool | Absent = NOT_ASKED
    throttle: tuple[str, ...] | Absent = NOT_ASKED
    processes: tuple[int | None, ...] | Absent = NOT_ASKED
    cpus: tuple[int, ...] | Absent = NOT_ASKED
    numa_nodes: tuple[int, ...] | Absent = NOT_ASKED
    fabric: GpuFabric | Absent = NOT_ASKED
    compute: tuple[int, int] | Absent = NOT_ASKED
    power_limit_W: int | Absent = NOT_ASKED
    power_default_W: int | Absent = NOT_ASKED
    clock_MHz: int | Absent = NOT_ASKED
    temperature_C: int | Absent = NOT_ASKED
    slowdown_C: int | Absent = NOT_ASKED
    pcie_replays: int | Absent = NOT_ASKED
    hot_s: int | Absent = NOT_ASKED


class Gpus(Struct, frozen=True):
    """At least one GPU, the driver's version, and the newest CUDA version that it supports (12.4 is (12, 4)).

    `nvml` is the library's version; in a container it may differ from the driver's. `instead_of_nvml`: why NVML was
    unavailable; all data is then nvidia-smi's.
    """

    all: tuple[Gpu, ...]
    driver: str
    cuda: tuple[int, int]
    nvml: str | Absent = NOT_ASKED
    instead_of_nvml: str = ""

    @property
    def names(self) -> dict[str, str]:
        """Map each GPU's PCI address (as sysfs spells it) and plain UUID to its name, ``GPU3``."""
        known = [(normal(gpu.pci) if gpu.pci else "", gpu.uuid.removeprefix("GPU-"), gpu) for gpu in self.all]
        return {key: f"GPU{gpu.index}" for address, uuid, gpu in known for key in (address, uuid) if key}


@collector
def nvml(host: Host) -> Gpus:
    """Read every GPU that NVML counts. Zero GPUs prove nothing: the container may not have been given any."""
    try:
        count = ask(host, number, "nvmlDeviceGetCount")
    except (Missing, Denied, Failed, NotCaptured) as refusal:
        asked = refusal
        told = attempt(lambda: _read_nvidia_smi(host, asked))
        if isinstance(told, Absent):
            raise
        return told
    if not count:
        raise Missing("NVML counts 0 GPUs: none is visible to this process")
    if count > bounds.NVML_DEVICES:
        raise ParseError(f"NVML counts {count} GPUs: no node has so many")
    code = ask(host, number, "nvmlSystemGetCudaDriverVersion")
    return Gpus(
        all=tuple(_gpu(host, index) for index in range(count)),
        driver=ask(host, text, "nvmlSystemGetDriverVersion"),
        cuda=(code // 1000, code % 1000 // 10),
        nvml=learn(host, text, "nvmlSystemGetNVMLVersion"),
    )


def _read_nvidia_smi(host: Host, refusal: HostError) -> Gpus:
    driver, gpus = nvidia_smi.query(host)
    computes = nvidia_smi.capabilities(host, len(gpus))
    return Gpus(
        all=tuple(
            _parse_smi_gpu(index, gpu, compute) for index, (gpu, compute) in enumerate(zip(gpus, computes, strict=True))
        ),
        driver=driver,
        cuda=nvidia_smi.cuda_version(host.ask("run", "nvidia-smi", "--version")),
        nvml=Absent(str(refusal), type(refusal).__name__),
        instead_of_nvml="" if isinstance(refusal, NotCaptured) else str(refusal),
    )


def _parse_smi_gpu(index: int, gpu: "Element", compute: tuple[int, int] | Absent) -> Gpu:
    """Parse a GPU of ``nvidia-smi -q -x``, which lacks the nearest processors."""
    told: dict[str, Any] = {name: _parse_cell(gpu, parse, *paths) for name, (parse, *paths) in _OF_SMI.items()}
    told |= {name: gpu.findtext(path, "") for name, path in _SMI_NAMES.items()}
    told |= {"ecc_since_reset": nvidia_smi.uncorrected(gpu, "volatile")}
    told |= {"ecc_ever": nvidia_smi.uncorrected(gpu, "aggregate"), "fabric": _smi_fabric(gpu)}
    told |= {"throttle": _smi_reasons(gpu), "processes": _smi_processes(gpu)}
    found = Gpu(index=index, compute=compute, **told)
    return replace(found, lost=_why_lost(found))


def _parse_cell(gpu: "Element", parse: Callable[[str], T], *paths: str) -> T | Absent:
    text = nvidia_smi.cell(gpu, *paths)
    return text if isinstance(text, Absent) else attempt(lambda: _understood(parse, paths[0], text))


def _smi_fabric(gpu: "Element") -> GpuFabric | Absent:
    state = _parse_cell(gpu, lambda text: _FABRIC_WORDS[text], "fabric/state")
    if isinstance(state, Absent):
        return state
    status, cluster = nvidia_smi.cell(gpu, "fabric/status"), nvidia_smi.cell(gpu, "fabric/clusterUuid")
    clique = _parse_cell(gpu, int, "fabric/cliqueId")
    health = gpu.find("fabric/health")
    troubles = tuple(name for name, path, word in _SMI_TROUBLES if gpu.findtext(f"fabric/health/{path}") == word)
    return GpuFabric(
        state=state,
        status=0 if status == "Success" or state != "completed" else _UNKNOWN_ERROR,
        cluster=cluster if isinstance(cluster, str) else "",
        clique=clique if isinstance(clique, int) else 0,
        troubles=Absent("nvidia-smi -q does not report fabric/health", "Missing") if health is None else troubles,
    )


def _smi_reasons(gpu: "Element") -> tuple[str, ...] | Absent:
    """Return NVML's names of the active reasons: ``clocks_event_reason_hw_slowdown`` is "hw-slowdown"."""
    for kind in ("event", "throttle"):  # the second up to driver 530
        if (found := gpu.find(f"clocks_{kind}_reasons")) is not None:
            active = {each.tag.removeprefix(f"clocks_{kind}_reason_") for each in found if each.text == "Active"}
            names = {
                tag.replace("_", "-").replace("clocks", "clock", tag == "display_clocks_setting") for tag in active
            }
            return tuple(name for name in _REASONS if name in names)
    return Absent("nvidia-smi -q does not report clocks_event_reasons", "Missing")


def _smi_processes(gpu: "Element") -> tuple[int | None, ...] | Absent:
    if gpu.find("processes") is None:
        return Absent("nvidia-smi -q does not report processes", "Missing")
    computing = [each for each in gpu.iterfind("processes/process_info") if "C" in (each.findtext("type") or "")]
    used = [_parse_cell(each, _mebibytes, "used_memory") for each in computing]
    return tuple(None if isinstance(each, Absent) else each for each in used)


def _understood(parse: Callable[[str], T], name: str, text: str) -> T:
    try:
        return parse(text)
    except (ValueError, LookupError, TypeError):
        raise ParseError(f"nvidia-smi {name}: {text[:40]!r}") from None


def _mebibytes(text: str) -> int:
    return _amount(text, "MiB") << 20


def _amount(text: str, unit: str) -> int:
    """Parse a whole number with its unit: ``700.00 W`` is 700, ``16x`` is 16. Raises ValueError for another unit."""
    number, found, behind = text.partition(unit)
    if not found or behind:
        raise ValueError(f"not in {unit}")
    return round(float(number))


def _enabled(text: str) -> bool:
    return {"Enabled": True, "Disabled": False, "Yes": True, "No": False}[text]


_watt, _megahertz = partial(_amount, unit="W"), partial(_amount, unit="MHz")
_lanes, _celsius = partial(_amount, unit="x"), partial(_amount, unit="C")
_MODE_WORDS = dict(zip(("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"), _COMPUTE_MODES, strict=True))
_FABRIC_WORDS = dict(zip(("Not Supported", "Not Started", "In Progress", "Completed"), _FABRIC_STATES, strict=True))
_UNKNOWN_ERROR = 999  # NVML_ERROR_UNKNOWN: nvidia-smi has words of its own
_SMI_TROUBLES = (
    ("degraded-bandwidth", "bandwidth", "Degraded"),
    ("route-recovery", "route_recovery_in_progress", "True"),
    ("route-unhealthy", "route_unhealthy", "True"),
    ("access-timeout-recovery", "access_timeout_recovery", "True"),
)
_SMI_NAMES = {"name": "product_name", "uuid": "uuid", "pci": "pci/pci_bus_id"}
_LINK = "pci/pci_gpu_link_info"
_OF_SMI: dict[str, tuple[Any, ...]] = {  # how each field reads, and where it is: nvidia-smi(1), and the older names
    "memory_bytes": (_mebibytes, "fb_memory_usage/total"),
    "memory_used_bytes": (_mebibytes, "fb_memory_usage/used"),
    "bar1_bytes": (_mebibytes, "bar1_memory_usage/total"),
    "pcie_generation": (int, f"{_LINK}/pcie_gen/current_link_gen"),
    "pcie_width": (_lanes, f"{_LINK}/link_widths/current_link_width"),
    "pcie_max_generation": (int, f"{_LINK}/pcie_gen/max_link_gen"),
    "pcie_max_width": (_lanes, f"{_LINK}/link_widths/max_link_width"),
    "pcie_replays": (int, "pci/replay_counter"),
    "compute_mode": (_MODE_WORDS.__getitem__, "compute_mode"),
    "mig": (_enabled, "mig_mode/current_mig"),
    "mig_pending": (_enabled, "mig_mode/pending_mig"),
    "persistence": (_enabled, "persistence_mode"),
    "ecc": (_enabled, "ecc_mode/current_ecc"),
    "ecc_pending": (_enabled, "ecc_mode/pending_ecc"),
    "sram_worn": (_enabled, "ecc_errors/aggregate/sram_threshold_exceeded"),
    "remap_pending": (_enabled, "remapped_rows/remapped_row_pending"),
    "remap_failed": (_enabled, "remapped_rows/remapped_row_failure"),
    "power_limit_W": (_watt, "gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
    "power_default_W": (_watt, "gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
    "clock_MHz": (_megahertz, "applications_clocks/graphics_clock"),
    "temperature_C": (_celsius, "temperature/gpu_temp"),
    "slowdown_C": (_celsius, "temperature/gpu_temp_slow_threshold"),
}


def _gpu(host: Host, index: int) -> Gpu:
    """Read one GPU. A lost GPU does not hide the others, but a driver that does not answer hides all."""
    try:
        gpu = Gpu(
            index=index,
            name=ask(host, text, "nvmlDeviceGetName", index),
            uuid=ask(host, text, "nvmlDeviceGetUUID", index),
            pci=ask(host, lambda pci: text(pci["busId"]), "nvmlDeviceGetPciInfo", index),
        )
    except Failed as error:
        return Gpu(index=index, lost=str(error))
    told: dict[str, Any] = {}
    for names, parse, function, *more in _OF_NVML:
        found = learn(host, parse, function, index, *more, older=_OLDER.get(function, ""))
        one_each = zip(names, found, strict=True) if names[1:] and not isinstance(found, Absent) else ()
        told |= dict(one_each) or dict.fromkeys(names, found)
    gpu = replace(gpu, **told)
    return replace(gpu, lost=_why_lost(gpu))


def _heated(status: dict[str, Any]) -> float:
    return number(status["violationTime"]) / 1e9  # nvmlViolationTime_t: ns


def heated_s(host: Host) -> dict[int, float]:
    """Return the seconds for which heat has lowered each GPU's clocks so far, for GPUs that report it."""
    count = attempt(lambda: ask(host, number, "nvmlDeviceGetCount"))
    gpus = range(min(count, bounds.NVML_DEVICES) if isinstance(count, int) else 0)
    told = {index: learn(host, _heated, "nvmlDeviceGetViolationStatus", index, _THERMAL) for index in gpus}
    return {index: seconds for index, seconds in told.items() if not isinstance(seconds, Absent)}


def xids(host: Host) -> tuple[tuple[int, str], ...] | Absent:
    """Return GPU and code of each Xid since the previous call. NVML starts to listen at the first call."""
    return attempt(lambda: _read(_parse_xids, "xids", host.ask("nvml", "xids")))


def _parse_xids(told: list[list[int]]) -> tuple[tuple[int, str], ...]:
    return tuple((number(gpu), str(number(code))) for gpu, code in told)


def _capability(version: list[int]) -> tuple[int, int]:
    major, minor = map(number, version)
    return major, minor


def _now_and_next(modes: list[int]) -> tuple[bool, bool]:
    current, pending = map(number, modes)
    return bool(current), bool(pending)


def _remaps(counts: list[int]) -> tuple[bool, bool]:
    _corrected, _uncorrected, pending, failed = map(number, counts)
    return bool(pending), bool(failed)


def reasons(mask: Any) -> tuple[str, ...]:
    """Return the names of the bits that are set; unknown bits are named by position."""
    bits = [bit for bit in range(64) if number(mask) >> bit & 1]
    return tuple(_REASONS[bit] if bit < len(_REASONS) else f"bit-{bit}" for bit in bits)


def _fabric(info: dict[str, Any]) -> GpuFabric:
    digits = bytes(map(number, info["clusterUuid"])).hex()
    mask = info.get("healthMask")
    old = Absent("NVML nvmlDeviceGetGpuFabricInfo does not report", Missing.__name__)
    return GpuFabric(
        state=_FABRIC_STATES[number(info["state"])],
        status=number(info["status"]),
        cluster="-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])),
        clique=number(info["cliqueId"]),
        troubles=old if mask is None else _troubles(number(mask)),
    )


def _troubles(mask: int) -> tuple[str, ...]:
    configuration = mask >> 8 & 0xF  # 0: not supported, 1: none wrong, else which
    wrong = (f"incorrect-configuration-{configuration}",) if configuration > 1 else ()
    return tuple(name for shift, name in _TROUBLES.items() if mask >> shift & 3 == 1) + wrong


def _watts(milliwatts: Any) -> int:
    return round(number(milliwatts) / 1000)


def _processes(used: list[int | None]) -> tuple[int | None, ...]:
    return tuple(None if nbytes is None else number(nbytes) for nbytes in used)


# The fields of a GPU, with what makes them of the answer, and the question. Where a GPU is on the machine: not by
# nvmlDeviceGetNumaNodeId, which is the node of the GPU's own memory, where that is one (Grace).
_OF_NVML: tuple[tuple[Any, ...], ...] = (
    (
        ("memory_bytes", "memory_used_bytes"),
        lambda memory: (number(memory["total"]), number(memory["used"])),
        "nvmlDeviceGetMemoryInfo",
    ),
    (("remap_pending", "remap_failed"), _remaps, "nvmlDeviceGetRemappedRows"),
    (("ecc", "ecc_pending"), _now_and_next, "nvmlDeviceGetEccMode"),
    (("ecc_since_reset",), number, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
    (("ecc_ever",), number, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _AGGREGATE),
    (("sram_worn",), lambda status: bool(number(status["bThresholdExceeded"])), "nvmlDeviceGetSramEccErrorStatus"),
    (("bar1_bytes",), lambda sizes: number(sizes["bar1Total"]), "nvmlDeviceGetBAR1MemoryInfo"),
    (("pcie_generation",), number, "nvmlDeviceGetCurrPcieLinkGeneration"),
    (("pcie_width",), number, "nvmlDeviceGetCurrPcieLinkWidth"),
    (("pcie_max_generation",), number, "nvmlDeviceGetMaxPcieLinkGeneration"),
    (("pcie_max_width",), number, "nvmlDeviceGetMaxPcieLinkWidth"),
    (("compute_mode",), lambda mode: _COMPUTE_MODES[number(mode)], "nvmlDeviceGetComputeMode"),
    (("mig", "mig_pending"), _now_and_next, "nvmlDeviceGetMigMode"),
    (("persistence",), lambda mode: bool(number(mode)), "nvmlDeviceGetPersistenceMode"),
    (("fabric",), _fabric, "nvmlDeviceGetGpuFabricInfoV"),
    (("compute",), _capability, "nvmlDeviceGetCudaComputeCapability"),
    (("throttle",), reasons, "nvmlDeviceGetCurrentClocksEventReasons"),
    (("processes",), _processes, "nvmlDeviceGetComputeRunningProcesses"),
    (("cpus",), members, "nvmlDeviceGetCpuAffinity", _WORDS),
    (("numa_nodes",), members, "nvmlDeviceGetMemoryAffinity", _WORDS, 0),
    (("power_limit_W",), _watts, "nvmlDeviceGetEnforcedPowerLimit"),
    (("power_default_W",), _watts, "nvmlDeviceGetPowerManagementDefaultLimit"),
    (("clock_MHz",), number, "nvmlDeviceGetApplicationsClock", _SM),
    (("temperature_C",), number, "nvmlDeviceGetTemperature", _OF_THE_CHIP),
    (("slowdown_C",), number, "nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
    (("pcie_replays",), number, "nvmlDeviceGetPcieReplayCounter"),
    (("hot_s",), lambda status: round(_heated(status)), "nvmlDeviceGetViolationStatus", _THERMAL),
)
_OLDER = {
    "nvmlDeviceGetGpuFabricInfoV": "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
}


def _why_lost(gpu: Gpu) -> str:
    """Return why a GPU is lost. NVML caches names and addresses, so a lost GPU may still answer those questions."""
    seen = [getattr(gpu, name) for name in gpu.__struct_fields__]
    return next((field.why for field in seen if isinstance(field, Absent) and field.why.endswith((*GONE, "ERR!"))), "")


P2pStatus = Literal["OK", "CNS", "GNS", "TNS", "DR", "NS", "U"]
Pairs = Mapping[tuple[int, int], P2pStatus | Absent]
"""Keyed by the indices of two different GPUs, in both orders."""

# NVML_P2P_STATUS_… as the legend of nvidia-smi abbreviates them: OK, chipset not supported, GPU not supported, topology
# not supported, disabled by registry key, not supported, unknown.
_STATUSES: tuple[P2pStatus, ...] = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
CAPABILITIES = (0, 1, 2)  # NVML_P2P_CAPS_INDEX_READ, _WRITE, _NVLINK
ASK = "nvmlDeviceGetP2PStatus"


class PeerAccess(Struct, frozen=True):
    """Whether each GPU may read and write each other GPU's memory, and whether by NVLink. Lost GPUs are left out.

    NCCL asks NVML for reads and writes as well, and fails if there is NVLink and one of them is not OK.
    """

    read: Pairs = field(default_factory=dict)
    write: Pairs = field(default_factory=dict)
    nvlink: Pairs = field(default_factory=dict)


@collector
def nvml_p2p(host: Host, gpus: Gpus) -> PeerAccess:
    """Read every ordered pair of GPUs that are not lost."""
    present = [gpu.index for gpu in gpus.all if not gpu.lost]
    return PeerAccess(*(_pairs(host, present, capability) for capability in CAPABILITIES))


def _pairs(host: Host, gpus: Sequence[int], capability: int) -> Pairs:
    pairs: dict[tuple[int, int], P2pStatus | Absent] = {}
    for gpu in gpus:
        peers = [peer for peer in gpus if peer != gpu]
        if peers:
            row = several(host, lambda code: _STATUSES[number(code)], len(peers), ASK, gpu, listed(peers), capability)
            pairs |= {(gpu, peer): status for peer, status in zip(peers, row, strict=True)}
    return pairs
