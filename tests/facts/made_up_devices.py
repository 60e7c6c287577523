"""PCI devices, and GPUs by NVML and nvidia-smi: `command_values/texts.txt` keeps what is learned of each."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from conftest import FACTS, answers
from fake_sysfs import BRIDGE, GEN5, INFINIBAND, NVSWITCH, Sysfs, config_space, two_sockets

from ncclprobe.engine.collect import collect
from ncclprobe.facts import nvidia_smi, nvlink, nvml, pci
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Failed, TimedOut
from tests.facts import made_up as of
from tests.facts.made_up import GONE, NVML, ODD, learn


def space(config: bytes) -> str:
    """Return a config space in the form of a host's answer."""
    rows = {hex(at): config[at : at + 16].hex() for at in range(0, len(config), 16)}
    return json.dumps({"length": len(config), "rows": rows})


def express(control: int, ats: int | None = None, following: int = 0x60) -> bytes:
    """Return the config space of a PCI Express function with another capability before its own."""
    config = bytearray(4096)
    config[0:4], config[0x34], config[0x40:0x42], config[0x60] = b"\xde\x10\x30\x23", 0x40, b"\x05\x60", 0x10
    config[0x41], config[0x68:0x6A] = following, control.to_bytes(2, "little")
    if ats is not None:
        config[0x100:0x104] = (1 << 16 | 0x000F).to_bytes(4, "little")
        config[0x106:0x108] = ats.to_bytes(2, "little")
    return bytes(config)


def patched(config: bytes, *changes: tuple[int, str]) -> str:
    """Return a host's answer for a config space with these bytes changed."""
    changed = bytearray(config)
    for at, said in changes:
        changed[at : at + len(said) // 2] = bytes.fromhex(said)
    return space(bytes(changed))


def _tree(one: str = "", *lost: str) -> object:
    """Return what is learned of a device or a bridge when these files of the machine's first GPU are missing."""
    with TemporaryDirectory() as folder:
        tree = Sysfs(Path(folder))
        two_sockets(tree)
        tree.pci("pci0000:00/0000:00:01.0", speed=GEN5)
        tree.pci("pci0000:00/0000:00:01.0/0000:01:00.0", NVSWITCH, speed=GEN5, width=2)
        tree.pci("pci0000:00/0000:00:02.0", INFINIBAND, numa=-1)
        host, own = tree.finish(), Path(folder, "sys/bus/pci/devices/0000:13:00.0")
        for name in lost:
            (own / name).write_text("nonsense\n") if name == "resource" else (own / name).unlink()
        seen = collect(host, [pci.pci])[pci.Pci]
    asked = [question[1] for question in host.asked if "0000:10:1f.0" in str(question)]
    kinds = [[each.address for each in seen.of(kind)] for kind in ("gpu", "nic", "nvswitch")]
    return {**seen.devices, **seen.bridges}[one] if one else (kinds, asked, len(host.asked) - len({*host.asked}))


PORT_ACS = config_space(BRIDGE, (1, 2), 3, [4], acs=0x1D)


def _fabric(mask: int, *changes: tuple[str, object]) -> object:
    """Return what NVML's answer about a GPU's fabric means, with this health mask."""
    said = {"clusterUuid": [0] * 16, "status": 0, "cliqueId": 0, "state": 3, "healthMask": mask, **dict(changes)}
    return learn(nvml.nvml, NVML | {("nvml", "nvmlDeviceGetGpuFabricInfoV", 0): said}).all[0].fabric


HEALTHY: dict[str, str] = json.loads((FACTS.parent / "nvidia_smi_gpu.json").read_text())
"""One GPU of ``nvidia-smi -q -x``: names and units as nvsmi_device_v12.dtd and nvidia-smi(1) have them."""


def xml(*gpus: Mapping[str, str | None]) -> str:
    """Return the output of ``nvidia-smi -q -x``; an element without a text is left out."""
    listed = ["".join(f"<{name}>{text}</{name}>" for name, text in gpu.items() if text is not None) for gpu in gpus]
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
        f"<driver_version>570.86.15</driver_version>{''.join(f'<gpu>{gpu}</gpu>' for gpu in listed)}</nvidia_smi_log>"
    )


OLDER: dict[str, str | None] = {
    **dict.fromkeys(("gpu_power_readings", "clocks_event_reasons")),
    "power_readings": "<enforced_power_limit>250 W</enforced_power_limit>"
    "<default_power_limit>300 W</default_power_limit>",
    "clocks_throttle_reasons": "<clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown>",
}


def _by_smi(*changes: Mapping[str, str | None], compute: str = "9.0\n9.0\n", **more: str) -> object:
    """Return what nvidia-smi reports when NVML cannot be asked; `changes` has those of each GPU."""
    said = {("nvml", "nvmlDeviceGetCount"): GONE, ("run", "nvidia-smi", "--version"): "CUDA Version : 12.8\n"}
    text = more.get("text") or xml(*({**HEALTHY, **each} for each in changes))
    return learn(nvml.nvml, said | {nvidia_smi.ASK: text, nvidia_smi.ASK_COMPUTE: compute})


def _differs(**changed: str) -> object:
    """Return the fields of a GPU that change if nvidia-smi prints this about it."""
    usual, now = (learned.all[0] for learned in (_by_smi({}, {}), _by_smi(changed, {})))
    return [(each, getattr(now, each)) for each in now.__struct_fields__ if getattr(now, each) != getattr(usual, each)]


def _odd_answer(function: str, answer: object, field: str, *more: object) -> object:
    gpu = learn(nvml.nvml, NVML | {("nvml", function, 0, *more): json.dumps(answer)}).all[0]
    return getattr(gpu, field), gpu.lost


_CUT = {"length": 70, "rows": {"0x000": "ff" * 4}}
CALLS: Mapping[Callable[..., object], Sequence[Any]] = {
    pci.acs: [space(PORT_ACS), space(PORT_ACS[:64]), space(PORT_ACS[:65]), space(PORT_ACS[:256]), space(b"\xff" * 4096),
        patched(bytes(4096), (0x100, "01000010")), json.dumps(_CUT), "x", '{"length": 4}', *(patched(bytes(size),
        (0x100, "0100" + at), (int(at[2:] + at[:1], 16), said)) for size in (4096, 4095) for at, said in (("81ff",
        "0d0000000000ffff"), ("c1ff", "0d000000"))), patched(bytes(4096), (0x100, "ffffffff")), patched(bytes(4096),
        (0x100, "0d0000000000ffff")), patched(bytes(4096), (0x100, "0e000000 0000ffff".replace(" ", ""))), "[]", "7",
        "[" * 100_000, '{"length": 1e400, "rows": {}}', '{"length": -1, "rows": {}}', '{"length": 4096, "rows": []}',
        '{"length": 99999, "rows": {"0x100": "0d0000000000ff00", "0x1000": "ff"}}',
        '{"length": 80, "rows": {"x": "00"}}', '{"length": 80, "rows": {"0": "0g"}}',
        '{"length": "80", "rows": {"0xfe": "00000d0000000000ff00"}}'],
    pci.settings: [space(express(0x5930)), space(express(0x2820, 0x8000)), space(express(0x2820, 0)), space(express(0)[
        :64]), space(bytes(4096)), space(express(0, following=0x40)), *(patched(express(control, 0xFFFF), (0x34,
        "43")) for control in (0xFFFF, 0x7FFF, 0x8FFF, 0xFF0F, 0xFFEF)), patched(express(0x2820, 0x7FFF), (0x41, "63")),
        patched(express(0x2820)[:0x6C]), patched(express(0x2820)[:0x6B]), patched(express(0x2820), (0x34, "3c")),
        patched(express(0), (0x41, "00")), patched(express(0x2820), (0x100, "0100c1ff"), (0xFFC, "0f000000")), patched(
        express(0x2820), (0x100, "010081ff"), (0xFF8, "0f00000000000080"))],
    nvidia_smi.count: ["GPU 0: A\n  GPU 1: B\nGPU 2: C\n", "no devices\n", ""],
    nvidia_smi.cuda_version: ["NVML version : 570.86\nCUDA Version        : 12.4\n", "CUDA Version: 12\n",
        'CUDA version        : Deprecated, see "CUDA UMD version" instead\nCUDA UMD version    : 13.3\n'],
    nvlink.parse: ["", "\n", "Link 0: 25 GB/s", "no", "  no  ", of.TWO_GPUS.replace("\n", "  \n"),
        "GPU 0: A (UUID: GPU-b) (UUID: GPU-c)\n Link 0: 25 GB/s\n Link 1: " + ODD,
        "GPU 0: A (UUID: GPU-b) (UUID: GPU-c) d)\n Link 0: 25.5 GB/s\n", of.TWO_GPUS, of.TWO_GPUS * 2,
        of.TWO_GPUS.replace("Link 1", "Link 0"), of.TWO_GPUS.replace("<inactive>", "25 Gb"), "".join(f"> {line}\n" for
        line in of.TWO_GPUS.splitlines()), f"GPU 0: NVIDIA RTX A6000 (UUID: GPU-b) {of.TWO_GPUS.splitlines()[-1]}\n"],
    nvml.members: [[0], [5, 1], [1 << 63], [], [3 << 63, 1]],
    nvml.reasons: [0, 1, 0x1FF, 0x200, 1 << 63]}  # fmt: skip
GPUS: Mapping[str, tuple[Callable[..., object], Sequence[Any]]] = {
    "odd answers of NVML": (_odd_answer, [("nvmlDeviceGetMemoryInfo", {"total": "1"}, "memory_bytes"),
        ("nvmlDeviceGetRemappedRows", [0, 0], "remap_failed"), ("nvmlDeviceGetMigMode", [True], "mig"),
        ("nvmlDeviceGetMigMode", [1, True], "mig"), ("nvmlDeviceGetComputeMode", 4, "compute_mode"),
        ("nvmlDeviceGetComputeMode", 3, "compute_mode"), ("nvmlDeviceGetComputeMode", -1, "compute_mode"),
        ("nvmlDeviceGetCudaComputeCapability", [9], "compute"), ("nvmlDeviceGetPersistenceMode", None, "persistence"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "1", "throttle"), ("nvmlDeviceGetEnforcedPowerLimit", [700000],
        "power_limit_W"), ("nvmlDeviceGetTotalEccErrors", 7, "ecc_since_reset", 1, 0), ("nvmlDeviceGetTotalEccErrors",
        8, "ecc_ever", 1, 1), ("nvmlDeviceGetSramEccErrorStatus", {"bThresholdExceeded": 1}, "sram_worn"),
        ("nvmlDeviceGetRemappedRows", [0, 0, 1, 0], "remap_pending"), ("nvmlDeviceGetMigMode", [0, 1], "mig_pending"),
        ("nvmlDeviceGetRemappedRows", [0, 0, 1, 0], "remap_failed"), ("nvmlDeviceGetEccMode", [0, 1], "ecc"),
        ("nvmlDeviceGetComputeRunningProcesses", [None, 7, -1], "processes"), ("nvmlDeviceGetComputeRunningProcesses", [
        None, 7, 0], "processes"), ("nvmlDeviceGetCurrentClocksEventReasons", 0x1F0, "throttle"),
        ("nvmlDeviceGetMemoryInfo", {"total": 9, "used": 4}, "memory_used_bytes"), ("nvmlDeviceGetBAR1MemoryInfo", {
        "bar1Total": 8, "bar1Free": 3}, "bar1_bytes"), ("nvmlDeviceGetEnforcedPowerLimit", 699499, "power_limit_W"),
        ("nvmlDeviceGetViolationStatus", {"violationTime": 2_500_000_001, "referenceTime": 7}, "hot_s", 1), *((function,
        number, field, *more) for number, (function, field, *more) in enumerate((("nvmlDeviceGetCurrPcieLinkGeneration",
        "pcie_generation"), ("nvmlDeviceGetCurrPcieLinkWidth", "pcie_width"), ("nvmlDeviceGetMaxPcieLinkGeneration",
        "pcie_max_generation"), ("nvmlDeviceGetMaxPcieLinkWidth", "pcie_max_width"),
        ("nvmlDeviceGetPowerManagementDefaultLimit", "power_default_W"), ("nvmlDeviceGetApplicationsClock", "clock_MHz",
        1), ("nvmlDeviceGetTemperature", "temperature_C", 0), ("nvmlDeviceGetTemperatureThreshold", "slowdown_C", 1),
        ("nvmlDeviceGetPcieReplayCounter", "pcie_replays")), 1500))]),
    "how many GPUs": (lambda said: learn(nvml.nvml, NVML | {("nvml", "nvmlDeviceGetCount"): said}), [
        str(bounds.NVML_DEVICES), str(bounds.NVML_DEVICES + 1), "1", Failed("Driver Not Loaded"), "[" * 100_000]),
    "names of GPUs": (lambda *rows: nvml.Gpus(tuple(nvml.Gpu(*row) for row in rows), "", (12, 4)).names, [
        ((3, "A", "GPU-a", "00000000:C4:00.0"), (0, "B", "b", ""), (1, "", "", ""))]),
    "Xids of NVML": (lambda said: nvml.xids(answers({("nvml", "xids"): said})), [
        [[0, 79], [3, 13]], [], [[0]], [["0", 79]], {}, "x"]),
    "heat of GPUs": (lambda said: nvml.heated_s(answers(NVML | said)), [{}, {("nvml", "nvmlDeviceGetCount"): GONE}, {
        ("nvml", "nvmlDeviceGetViolationStatus", 1, 1): {"violationTime": 7}}]),
    "GPUs by nvidia-smi": (_by_smi, [({}, {}), ({},), (OLDER, OLDER)]),
    "a change of what nvidia-smi says": (lambda name, text: _differs(**{name: text}), [
        ("mig_mode", "<current_mig>N/A</current_mig>"), ("remapped_rows", "N/A"), ("fabric", "<state>N/A</state>"),
        ("applications_clocks", "<graphics_clock>9 GHz</graphics_clock>"), ("processes", ""),
        ("fb_memory_usage", "<total>GPU is lost</total>"), ("fb_memory_usage", "<total>[GPU requires reset]</total>"),
        ("fb_memory_usage", "<total>ERR!</total>"), ("compute_mode", "Exclusive_Process"),
        ("fabric", "<state>Completed</state><status>Failure</status>"),
        ("fabric", "<state>In Progress</state><status>N/A</status><health><bandwidth>Degraded</bandwidth>"
        "<route_unhealthy>True</route_unhealthy></health>"),
        ("clocks_event_reasons", "<clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>"
        "<clocks_event_reason_display_clocks_setting>Active" "</clocks_event_reason_display_clocks_setting>"),
        ("ecc_errors", "<volatile><double_bit><total>5</total></double_bit></volatile>"),
        ("ecc_errors", "<volatile><sram_uncorrectable>N/A</sram_uncorrectable></volatile>"),
        ("gpu_power_readings", "<current_power_limit>[N/A]</current_power_limit>"),
        ("gpu_power_readings", "<current_power_limit>199.5 W</current_power_limit>"), ("processes",
        "<process_info><type>C+G</type><used_memory>N/A</used_memory></process_info>"), ("processes", "".join(
        f"<process_info>{kind}<used_memory>{used}</used_memory></process_info>" for kind, used in (
        ("<type>G</type>", "1 MiB"), ("<type>C</type>", "2 MiB"), ("", "3 MiB"), ("<type>M+C</type>", "4 MiB")))),
        *(("fb_memory_usage", f"<total>{said}</total><used>9 MiB</used>") for said in ("GPU requires restart",
        "Insufficient Permissions", "Unknown Error", "9 MiB more", "9.6 MiB", "N/A",
        "Requested functionality has been deprecated")), ("ecc_errors", "".join(
        f"<aggregate><{kind}>{told}</{kind}></aggregate>" for kind, told in (("sram_uncorrectable_parity", "N/A"),
        ("dram_uncorrectable", "3"), ("dram_correctable", "50")))),
        ("ecc_errors", "<volatile><sram_uncorrectable_parity>2</sram_uncorrectable_parity><dram_uncorrectable>3"
        "</dram_uncorrectable><dram_correctable>50</dram_correctable></volatile>"),
        ("ecc_errors", "<volatile><sram_uncorrectable>x</sram_uncorrectable><dram_uncorrectable>ERR!"
        "</dram_uncorrectable></volatile>"),
        ("fabric", "<state>Completed</state><status>Success</status><clusterUuid>a</clusterUuid><cliqueId>7</cliqueId>"
        "<health><route_recovery_in_progress>True</route_recovery_in_progress>"
        "<access_timeout_recovery>True</access_timeout_recovery></health>"), ("fabric", "<state>Not Started</state>"),
        ("fabric", "<state>Not Supported</state>"), ("fabric", "<state>x</state>"), *((f"{place}_mode", said) for place,
        said in (("compute", "Exclusive_Thread"), ("compute", "Prohibited"), ("compute", "x"),
        ("persistence", "Disabled"))),
        ("mig_mode", "<current_mig>Disabled</current_mig><pending_mig>Enabled</pending_mig>"),
        ("ecc_mode", "<current_ecc>Enabled</current_ecc><pending_ecc>Disabled</pending_ecc>"), ("remapped_rows",
        "<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>"),
        ("temperature", "<gpu_temp>41 C</gpu_temp><gpu_temp_slow_threshold>87 C</gpu_temp_slow_threshold>"),
        ("clocks_event_reasons", "".join(f"<clocks_event_reason_{each}>{said}</clocks_event_reason_{each}>" for each,
        said in (("sw_thermal_slowdown", "Active"), ("hw_power_brake_slowdown", "Active"), ("sync_boost", "Not Active"),
        ("gpu_idle", "Active"), ("applications_clocks_setting", "Active"), ("sw_power_cap", "Active"))))]),
    "compute capabilities": (lambda said: [each.compute for each in _by_smi({}, {}, compute=said).all],
                             [  # type: ignore[dict-item]
        " 9.0 \n8.6", "9.0\n9", "9.0\nx.0", "x.0\n9.0", "9.0", "9.0\n9.0\n9.0", "9.0.1\n9.0"]),
    "what nvidia-smi does not tell": (lambda text: _by_smi(text=text), ["No devices were found", xml(), "<a/>",
        f"<{'b' * 99}/>", "<nvidia_smi_log><gpu>", f'<!ENTITY a "b">{xml(HEALTHY)}']),
    "how many NVLinks": (lambda text: str(learn(nvlink.nvlink,
        NVML | {("nvml", "nvmlDeviceGetFieldValues", 0, "91", "0"): text}, [nvml.nvml]).gpus[0])[:60], ["[2]", "[0]",
        f"[{bounds.NVLINKS}]", f"[{bounds.NVLINKS + 1}]", "[]", "[1, 1]", "7", '[{"refused": "x", "why": "y"}]',
        '[{"refused": "Failed", "why": "Not Supported"}]', '[{"refused": "Failed", "why": "Unknown Error"}]']),
}  # fmt: skip
FUNCTIONS: Mapping[str, tuple[Callable[..., object], Sequence[Any]]] = {
    "kind of a function": (lambda code, vendor: pci.Identity(code, vendor, 0).kind, [
        (0x030200, 0x10DE), (0x030000, 0x10DE), (0x030000, 0x1A03), (0x040300, 0x10DE), (0x068000, 0x10DE),
        (0x068000, 0x8086), (0x068001, 0x1014), (0x068000, 0x1014), (0x020000, 0x15B3), (0x020700, 0x15B3),
        (0x028000, 0x15B3), (0x0C0600, 0x15B3), (0x010802, 0x144D), (0x060400, 0x10B5), (0x120000, 0x10DE)]),
    "switches": (lambda *bridges: pci.PciPosition("pci0000:00", bridges).switches,
                 [(), ("r",), ("r", "u"), ("r", "u", "d"), ("r", "u", "d", "v", "e")]),
    "settings in lspci's words": (lambda control, ats: str(pci.settings(space(express(control, ats)))),
                                  [(0x5930, None), (0x2820, 0x8000), (0, 0)]),
    "fabric of NVLink": (_fabric, [*((mask,) for mask in (0, 0x1AA, 0x001, 0x155, 0x154, 0x100, 0x200, 0x400, 0x1200,
        0xF00, 0x004, 0x010, 0x040)), (0, ("state", 4)), (0, ("clusterUuid", [256] * 16)), (0, ("clusterUuid", 10**12)),
        (0, ("healthMask", None)), (0, ("status", -1))])}  # fmt: skip
TREES: Mapping[str, tuple[Callable[..., object], Sequence[Any]]] = {
    "a tree on the bus": (_tree, [(), *(f"0000:{each}" for each in ("13:00.0", "17:00.0", "14:00.0", "31:00.0",
        "83:00.0", "01:00.0", "00:02.0", "10:01.0", "11:00.0", "12:00.0", "12:02.0", "30:01.0", "80:01.0")),
        *(("0000:13:00.0", name) for name in ("numa_node", "max_link_width", "aer_dev_fatal", "iommu_group/type",
        "resource", "config"))]),
    "devices that do not answer": (lambda *said: learn(pci.pci, {("list", pci.ROOT): [name for name, _ in said],
        **{("read", f"{pci.ROOT}/{name}/uevent"): each for name, each in said}}), [
        (("0000:14:00.0", TimedOut("no answer")), ("0000:13:00.0", GONE)), (("b", Denied("no")),
            ("a", TimedOut("late"))),
        (("0000:14:00.0", "nonsense"),), (("0000:14:00.0", "PCI_CLASS=20700\nPCI_ID=15B3:1021\n"),)])}  # fmt: skip
