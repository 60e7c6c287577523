"""nvidia-smi's output about GPUs, each form converted to what ``nvidia-smi -q -x`` would answer."""

import re
from collections.abc import Mapping, Sequence

from ncclprobe.host import Question
from ncclprobe.model.errors import HostError

Answers = dict[Question, str | HostError]

ASK_GPUS: Question = ("run", "nvidia-smi", "-q", "-x")


def listed(lines: Sequence[str]) -> Answers:
    """Read ``nvidia-smi -L``, alone or as the headings of ``nvidia-smi nvlink -s``."""
    listed = [line.strip() for line in lines if re.match(r"\s*GPU \d{1,3}: .{1,100} \(UUID: ", line)]
    listed = list(dict.fromkeys(listed))  # the headings of nvlink -s are the same
    if any(_FIRST.search(line) for line in lines):  # the others are not shown
        return {}
    parts = [re.split(r": | \(UUID: ", line.rstrip(")"), maxsplit=2) for line in listed]
    real = len({uuid for _, _, uuid in parts}) == len(parts)  # people blacken them
    gpus = [{"product_name": name, "uuid": uuid if real else ""} for _, name, uuid in parts]
    named = _xml(gpus, "", "") if len({number for number, _, _ in parts}) == len(parts) > 1 else {}
    return {**named, ("run", "nvidia-smi", "-L"): "\n".join(listed) + "\n"} if listed else {}


_FIRST = re.compile(r"nvidia-smi (?:-L|nvlink)\b.{0,40}(?:\| ?(?:head|tail|sed|grep|awk)\b|\s-i[= ]?\d)")
_LINK = "pci/pci_gpu_link_info"
_IN_XML = {
    "gpu_uuid": "uuid",
    "pci/bus_id": "pci/pci_bus_id",
    "pci/replays_since_reset": "pci/replay_counter",
    "pci/gpu_link_info/pcie_generation/max": f"{_LINK}/pcie_gen/max_link_gen",
    "pci/gpu_link_info/pcie_generation/current": f"{_LINK}/pcie_gen/current_link_gen",
    "pci/gpu_link_info/link_width/max": f"{_LINK}/link_widths/max_link_width",
    "pci/gpu_link_info/link_width/current": f"{_LINK}/link_widths/current_link_width",
    "mig_mode/current": "mig_mode/current_mig",
    "mig_mode/pending": "mig_mode/pending_mig",
    "ecc_mode/current": "ecc_mode/current_ecc",
    "ecc_mode/pending": "ecc_mode/pending_ecc",
    "remapped_rows/pending": "remapped_rows/remapped_row_pending",
    "remapped_rows/remapping_failure_occurred": "remapped_rows/remapped_row_failure",
    "temperature/gpu_current_temp": "temperature/gpu_temp",
    "temperature/gpu_slowdown_temp": "temperature/gpu_temp_slow_threshold",
    "fabric/cliqueid": "fabric/cliqueId",
    "fabric/clusteruuid": "fabric/clusterUuid",
}
"""Path in ``-x`` of a heading of ``nvidia-smi -q``, unless it is the heading in small letters."""
_REASONS = re.compile(r"clocks_(event|throttle)_reasons/(?:\w{1,40}/)?(\w{1,40})")


_OF_QUERY = ("fabric", "gpu_fabric", "clocks_event_reasons", "clocks_throttle_reasons", "remapped_rows", "ecc_errors")
"""Headings in ``nvidia-smi -q`` whose parts a filter leaves without their GPU."""


def query(lines: Sequence[str]) -> Answers:
    """Read ``nvidia-smi -q``, whole or filtered, and convert it to ``-x``, which has its own reader."""
    gpus, path = list[dict[str, str]](), list[tuple[int, str]]()
    versions = {"driver version": "", "cuda version": ""}
    for line in lines:
        if _OF_GPU.fullmatch(line):
            gpus.append({"": line})
            path = []
            continue
        indent = len(line) - len(line.lstrip())
        name, colon, value = line.partition(" : ")
        path = [each for each in path if each[0] < indent] + [(indent, _tag(name))]
        if colon and gpus:
            gpus[-1][_xml_path([each for _, each in path])] = value.strip()
        elif colon and name.strip().lower() in versions:
            versions[name.strip().lower()] = value.strip()
    return _xml(gpus or _filtered_gpus(lines), versions["driver version"], versions["cuda version"])


_CSV = {
    "name": "product_name",
    "uuid": "uuid",
    "pci.bus_id": "pci/pci_bus_id",
    "pcie.link.gen.current": f"{_LINK}/pcie_gen/current_link_gen",
    "pcie.link.gen.max": f"{_LINK}/pcie_gen/max_link_gen",
    "pcie.link.width.current": f"{_LINK}/link_widths/current_link_width",
    "pcie.link.width.max": f"{_LINK}/link_widths/max_link_width",
    "ecc.errors.uncorrected.volatile.total": "ecc_errors/volatile/dram_uncorrectable",
    "remapped_rows.pending": "remapped_rows/remapped_row_pending",
    "remapped_rows.failure": "remapped_rows/remapped_row_failure",
    "mig.mode.current": "mig_mode/current_mig",
    "compute_mode": "compute_mode",
    "persistence_mode": "persistence_mode",
}
"""Columns of ``nvidia-smi --query-gpu``, and their paths in ``-x``."""
_STATED = re.compile(r"clocks_(event|throttle)_reasons\.(\w{1,40})")


def csv(lines: Sequence[str]) -> Answers:
    """Read ``nvidia-smi --query-gpu=… --format=csv``, with its header."""
    names: list[str] = []
    gpus, versions = list[dict[str, str]](), {"driver_version": ""}
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        heads = [cell.partition(" [")[0] for cell in cells]
        if len(cells) > 1 and {"index", "name", "uuid", "pci.bus_id"} & {*heads} and not cells[0].isdecimal():
            names = heads
        elif names and len(cells) == len(names):
            row = dict(zip(names, cells, strict=True))
            versions["driver_version"] = row.get("driver_version", "")
            gpus.append({"": line} | {_CSV[name]: _csv_cell(name, row[name]) for name in names if name in _CSV})
            for name in names:
                if stated := _STATED.fullmatch(name):
                    gpus[-1][f"clocks_{stated[1]}_reasons/clocks_{stated[1]}_reason_{stated[2]}"] = row[name]
        elif line.strip():
            names = []
    return _xml(gpus, versions["driver_version"], "")


def _csv_cell(name: str, cell: str) -> str:
    return f"{cell}x" if "width" in name and cell.isdecimal() else cell


_OF_GPU = re.compile(r"GPU [0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d")


def _tag(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()[:60]).strip("_")


def _filtered_gpus(lines: Sequence[str]) -> list[dict[str, str]]:
    """Return what a filter such as ``grep -A4 Fabric`` leaves of each GPU."""
    gpus, path = list[dict[str, str]](), list[tuple[int, str]]()
    begun: set[str] = set()
    for line in lines:
        indent = len(line) - len(line.lstrip())
        name, colon, value = line.partition(" : ")
        tag = _tag(name)
        if not colon and tag in _OF_QUERY:
            gpus += [{}] if not gpus or tag in begun else []
            begun = {tag} if tag in begun else begun | {tag}
            path = [(indent, tag)]
        elif not line.strip() or (path and indent <= path[0][0]):
            path = []
        elif path:
            path = [each for each in path if each[0] < indent] + [(indent, tag)]
            if colon:
                gpus[-1][_xml_path([each for _, each in path])] = value.strip()
    return [gpu for gpu in gpus if gpu]


def _xml_path(path: Sequence[str]) -> str:
    """Return the path of a heading in ``-x``."""
    whole = "/".join(path).removeprefix("gpu_" if path[0] == "gpu_fabric" else "")
    reason = _REASONS.fullmatch(whole)
    if reason and reason[2] == "idle":
        return f"clocks_{reason[1]}_reasons/clocks_{reason[1]}_reason_gpu_idle"
    if reason:
        return f"clocks_{reason[1]}_reasons/clocks_{reason[1]}_reason_{reason[2]}"
    return _IN_XML.get(whole, whole)


_SMI_ROW = re.compile(
    r"\|\s+(\d{1,3})\s+(.{1,40}?)\s+(On|Off|ERR!|N/A)\s+\|\s*([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:\d\d\.\d|ERR!|N/A)\s.{0,20}"
    r"\|\s*(\S{1,10})\s*\|"
)
_SMI_HEAD = re.compile(r"Driver Version: (\d[\d.]{0,20})\s+CUDA Version: (\d{1,3}\.\d{1,3})")
_SMI_MODE = re.compile(r"\s(Default|E\. Process|Prohibited)\s+\|$")
_MODES = {"E. Process": "Exclusive_Process"}


def table(lines: Sequence[str]) -> Answers:
    """Read the table of ``nvidia-smi``: names that are not cut, addresses, modes and memory errors."""
    gpus, versions = list[dict[str, str]](), ("", "")
    for line in lines:
        if head := _SMI_HEAD.search(line):
            versions = head[1], head[2]
        elif row := _SMI_ROW.match(line):
            name = "" if row[2].endswith("...") or "ERR!" in row[2] else row[2]
            gpus.append({"product_name": name, "ecc_errors/volatile/dram_uncorrectable": row[5]})
            gpus[-1] |= {"pci/pci_bus_id": row[4]} if ":" in row[4] else {}
            gpus[-1]["persistence_mode"] = {"On": "Enabled", "Off": "Disabled"}.get(row[3], row[3])
        elif gpus and (mode := _SMI_MODE.search(line)):
            gpus[-1]["compute_mode"] = _MODES.get(mode[1], mode[1])
        elif gpus and (mig := re.search(r"\|\s+(Enabled|Disabled)\s+\|$", line)):
            gpus[-1]["mig_mode/current_mig"] = mig[1]
        if gpus and line.startswith("|") and "ERR!" in line:
            gpus[-1]["fb_memory_usage/total"] = "ERR!"
        elif line.startswith("| Processes"):
            break
    for gpu, fields in zip(gpus, _filtered_gpus(lines), strict=False):
        gpu |= fields
    return _xml(gpus, *versions)


def _xml(gpus: Sequence[Mapping[str, str]], driver: str, cuda: str) -> Answers:
    """Return `gpus`, with fields keyed by path, as ``nvidia-smi -q -x`` would print them."""
    if not gpus:
        return {}
    from xml.etree import ElementTree  # only where such a text was pasted

    root = ElementTree.Element("nvidia_smi_log")
    ElementTree.SubElement(root, "driver_version").text = driver
    for fields in gpus:
        gpu = ElementTree.SubElement(root, "gpu")
        for place, value in fields.items():
            parts = place.split("/")
            if all(re.match(r"[a-z]", part) for part in parts) and (place != "processes" or value == "None"):
                node = gpu
                for part in parts:
                    found = node.find(part)
                    node = ElementTree.SubElement(node, part) if found is None else found
                node.text = "".join(letter for letter in value if letter.isprintable())
    return {
        ASK_GPUS: ElementTree.tostring(root, "unicode"),
        ("run", "nvidia-smi", "--version"): f"CUDA Version : {cuda or '0.0'}\n",
    }
