"""NVLink state per link, from NVML.

One call returns every field of every link of a GPU (nvmlDeviceGetFieldValues, the link as scope). NCCL's RAS reads
state and speed the same way (rasDiagnosticsNvLinkData). If the library is too old for these fields, their predecessors
are used: functions, and one field for each of links 0 to 11, the most that GPUs of that time had.

`nvidia-smi nvlink -s` is a second source: which NVLinks of each GPU are up, and their speed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ncclprobe.facts.nvml import NOT_ASKED, Gpu, Gpus, listed, number, several, text, unsupported
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_QUOTE = "> \t\u00a0|#"
_GPU = re.compile(r"GPU ([0-9]{1,4}): (.*)")
_LINK = r"Link ([0-9]{1,4}): (?:<inactive>|([0-9]{1,5}(?:\.[0-9]{1,6})?) GB/s)"


class GpuLinks(Struct, frozen=True):
    """One GPU. `links` maps a link's number to its speed per direction in GB/s; None: inactive."""

    name: str
    uuid: str
    links: Mapping[int, float | None]


class NvlinkStatus(Struct, frozen=True):
    """The listed GPUs by index. GPUs without NVLink are not listed."""

    gpus: Mapping[int, GpuLinks]


@collector
def nvlink_status(host: Host) -> NvlinkStatus:
    """Run ``nvidia-smi nvlink -s``, which prints nothing and exits with 0 if no GPU has NVLink."""
    return parse(host.ask("run", "nvidia-smi", "nvlink", "-s"))


def parse(text: str) -> NvlinkStatus:
    """Parse all GPUs in `text`, which may be empty. Raises ParseError for any other text, or a repeated GPU."""
    found = blocks(lines(text), _GPU)
    gpus = {int(heading[1]): _gpu(heading[2], body) for heading, body in found}
    if len(gpus) < len(found):
        raise ParseError("nvidia-smi nvlink -s: a GPU appears twice, so two outputs may be interleaved")
    if not gpus and text.strip():
        raise ParseError(f"not the output of nvidia-smi nvlink -s: {text.strip()[:80]!r}")
    return NvlinkStatus(gpus)


def _gpu(heading: str, body: Sequence[str]) -> GpuLinks:
    name, _, rest = heading.partition(" (UUID: ")
    uuid = rest.partition(")")[0]
    links: dict[int, float | None] = {}
    for line in body:
        if match := re.fullmatch(_LINK, line):
            if int(match[1]) in links:
                raise ParseError(f"nvidia-smi nvlink -s: link {match[1]} of {name} appears twice")
            links[int(match[1])] = float(match[2]) if match[2] else None
        elif line.startswith("Link "):
            raise ParseError(f"nvidia-smi nvlink -s: {line[:80]!r}")
    return GpuLinks(name, uuid, links)


def lines(text: str) -> list[str]:
    """Return the non-blank lines, without the spaces and quote marks that mails and forms add around them."""
    return [line for line in (raw.lstrip(_QUOTE).rstrip() for raw in text.splitlines()) if line]


def blocks(lines: Iterable[str], heading: re.Pattern[str]) -> list[tuple[re.Match[str], list[str]]]:
    """Split lines at each `heading`, and return it with the lines below it; lines above the first are dropped."""
    found: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if match := heading.fullmatch(line):
            found.append((match, []))
        elif found:
            found[-1][1].append(line)
    return found


State = Literal["inactive", "active", "sleep", "traffic-disabled"]
Remote = Literal["gpu", "ibm-npu", "switch", "unknown"]
Column = tuple[int | Absent, ...]
"""One field's values, one per link."""

_STATES: tuple[State, ...] = ("inactive", "active", "sleep", "traffic-disabled")  # NVML_NVLINK_STATE_…
_REMOTES: dict[int, Remote] = {0: "gpu", 1: "ibm-npu", 2: "switch"}  # NVML_NVLINK_DEVICE_TYPE_…
_LINK_COUNT = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_FIELDS = {  # NVML_FI_DEV_NVLINK_…, the link being the scope
    "state": 165,  # GET_STATE
    "version": 166,  # GET_VERSION
    "speed": 164,  # GET_SPEED
    "replays": 161,  # ERROR_DL_REPLAY, as the next two up to NVLink 4
    "recoveries": 162,  # ERROR_DL_RECOVERY
    "crc_errors": 163,  # ERROR_DL_CRC
    "recovery_events": 215,  # COUNT_LINK_RECOVERY_EVENTS, as the next from NVLink 5
    "effective_errors": 219,  # COUNT_EFFECTIVE_ERRORS
}
_LANES = {  # the same without scope: the numbers of links 0 and 6, each followed by those of five more
    "speed": (84, 132),  # SPEED_MBPS_L0 and _L6
    "replays": (46, 108),  # REPLAY_ERROR_COUNT_L0 and _L6
    "recoveries": (53, 114),  # RECOVERY_ERROR_COUNT_L0 and _L6
    "crc_errors": (32, 96),  # CRC_FLIT_ERROR_COUNT_L0 and _L6
}
_MOST_LANES = 12
_FUNCTIONS = {"state": "nvmlDeviceGetNvLinkState", "version": "nvmlDeviceGetNvLinkVersion"}
_FIELD_VALUES = "nvmlDeviceGetFieldValues"


class NvLink(Struct, frozen=True):
    """One link of one GPU; counters count since the driver was loaded.

    NCCL counts a link only if it is "active". `version` is a NVML_NVLINK_VERSION_… and does not identify a generation:
    H100s have been seen to report the 7 of NVLink 5. `speed_MBps` is 1e6 bytes per second in each direction on the
    wire, including coding (26562 for 25 GB/s of payload). `remote` is read unless the link is inactive. `recoveries`
    are NVLink 5's recovery events if there are no older ones; `effective_errors` are those that its error correction
    did not catch.
    """

    link: int
    state: State | Absent
    version: int | Absent = NOT_ASKED
    speed_MBps: int | Absent = NOT_ASKED
    remote: Remote | Absent = NOT_ASKED
    remote_pci: str | Absent = NOT_ASKED
    replays: int | Absent = NOT_ASKED
    recoveries: int | Absent = NOT_ASKED
    crc_errors: int | Absent = NOT_ASKED
    effective_errors: int | Absent = NOT_ASKED


class NvLinks(Struct, frozen=True):
    """The links of each GPU, by GPU index. Empty: known to have none. Absent: the links could not be counted."""

    gpus: tuple[tuple[NvLink, ...] | Absent, ...]


@collector
def nvlink(host: Host, gpus: Gpus) -> NvLinks:
    """Read every link of every GPU that is not lost."""
    return NvLinks(tuple(Absent(gpu.lost, "Failed") if gpu.lost else _links(host, gpu) for gpu in gpus.all))


def _links(host: Host, gpu: Gpu) -> tuple[NvLink, ...] | Absent:
    (count,) = several(host, _count, 1, _FIELD_VALUES, gpu.index, listed([_LINK_COUNT]), listed([0]))
    if unsupported(count) or count == 0:
        return ()
    if isinstance(count, Absent):
        return count
    columns = _columns(host, gpu.index, count)
    states = [_state(value) for value in columns["state"]]
    remotes = _remotes(host, gpu.index, [link for link, state in enumerate(states) if state != "inactive"])
    return tuple(
        NvLink(
            link=link,
            state=states[link],
            version=columns["version"][link],
            speed_MBps=columns["speed"][link],
            replays=columns["replays"][link],
            recoveries=columns["recoveries"][link],
            crc_errors=columns["crc_errors"][link],
            effective_errors=columns["effective_errors"][link],
            **remotes.get(link, {}),
        )
        for link in range(count)
    )


def _count(value: Any) -> int:
    if number(value) > bounds.NVLINKS:
        raise ValueError(f"more than {bounds.NVLINKS} links")
    return number(value)


def _columns(host: Host, gpu: int, count: int) -> dict[str, Column]:
    """Return every field of every link, each from the newest source that provides it."""
    columns = _ask_fields(host, gpu, list(_FIELDS), _FIELDS.values(), range(count), count)
    columns["recoveries"] = _first_known(columns["recoveries"], columns["recovery_events"])
    lacking = [name for name in _LANES if _unknown(columns[name])]
    if lacking and count <= _MOST_LANES:
        lanes = [_LANES[name][link // 6] + link % 6 for name in lacking for link in range(count)]
        older = _ask_fields(host, gpu, lacking, lanes, [0], count)
        columns |= {name: _first_known(columns[name], older[name]) for name in lacking}
    for name, function in _FUNCTIONS.items():
        if _unknown(columns[name]):
            older_ones = several(host, number, count, function, gpu, listed(range(count)))
            columns[name] = _first_known(columns[name], older_ones)
    return columns


def _ask_fields(
    host: Host, gpu: int, names: Sequence[str], numbers: Iterable[int], scopes: Iterable[int], count: int
) -> dict[str, Column]:
    """Read `count` values for each of `names` in one call."""
    values = several(host, number, len(names) * count, _FIELD_VALUES, gpu, listed(numbers), listed(scopes))
    return {name: values[place * count : (place + 1) * count] for place, name in enumerate(names)}


def _remotes(host: Host, gpu: int, links: Sequence[int]) -> dict[int, dict[str, Any]]:
    if not links:
        return {}
    kinds = several(host, _remote, len(links), "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, listed(links))
    addresses = several(host, text, len(links), "nvmlDeviceGetNvLinkRemotePciInfo", gpu, listed(links))
    ends = zip(links, kinds, addresses, strict=True)
    return {link: {"remote": kind, "remote_pci": address} for link, kind, address in ends}


def _remote(kind: Any) -> Remote:
    return _REMOTES.get(number(kind), "unknown")


def _state(value: int | Absent) -> State | Absent:
    if isinstance(value, Absent):
        return value
    return _STATES[value] if value < len(_STATES) else Absent(f"NVML calls the state {value}, which is not known here")


def _first_known(column: Column, older: Column) -> Column:
    """Return `column`, with unknown values replaced by those of `older`."""
    pairs = zip(column, older, strict=True)
    return tuple(b if isinstance(a, Absent) and not isinstance(b, Absent) else a for a, b in pairs)


def _unknown(column: Column) -> bool:
    return all(isinstance(value, Absent) for value in column)
