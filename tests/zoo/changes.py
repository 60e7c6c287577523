"""Small changes of a described machine: what one fault alters in its answers."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ncclprobe.model.errors import Failed, HostError, Missing
from zoo import software
from zoo.answers import Answers
from zoo.description import Machine
from zoo.pci import DEVICES, functions

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
        software.library(here, path, "libc.so.6")
        software.says_version(here, path, version)
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
