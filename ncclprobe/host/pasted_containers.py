"""What `docker run`, a compose file or a Kubernetes manifest gives a container: limits, memory, devices."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.host import Question
from ncclprobe.host.pasted_settings import OptionOf, whole
from ncclprobe.model.errors import HostError

Pair = tuple[tuple[str, ...], str]
"""A path of YAML keys, with the index for a list item, and the value there."""

_KEY = re.compile(r"[\"']?([\w./-]{1,120})[\"']?:(?:\s+(\S.{0,2000}))?")
_DEEPEST = 32
_RUN = re.compile(r"\b(?:docker|podman|nerdctl) run\b")
_OPTIONS = OptionOf(_RUN, re.compile(r"\s(--?[a-z][a-z-]{0,30})(?:[= ](?!-)[\"']?(\S{1,300}))?"))
_GPUS = re.compile(r"\s--gpus[= ]|nvidia\.com/gpu=|\s--runtime[= ]nvidia\b")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,3})?)\s?([kmgt]?)i?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DEFAULT = 64 << 20
"""/dev/shm without an option for it (docs.docker.com, --shm-size; containerd and CRI-O give a pod as much)."""
_SHARED = re.compile(r"/ib$|shared")
"""Resources of which one stands for all devices: of the shared device plugin, and CoreWeave's rdma/ib."""
_NICS = re.compile(
    r"vpc\.amazonaws\.com/efa|rdma/[\w.-]{1,80}|[\w.-]{1,60}/[\w.-]{0,40}(?:hostdev|mlnxnics|sriov|rdma)[\w.-]{0,40}"
)
EFA = "vpc.amazonaws.com/efa"


def pairs(lines: Sequence[str]) -> list[Pair]:
    """Return the values of a file of YAML, as far as they are on their keys' lines.

    >>> pairs(["a:", "- b: 1", "  c: {d: x}"])
    [(('a', '0', 'b'), '1'), (('a', '0', 'c', 'd'), 'x')]
    """
    found: list[Pair] = []
    above: list[tuple[int, str, bool]] = []
    items: dict[tuple[str, ...], int] = {}
    for line in lines:
        text = line.split(" #")[0].strip()
        indent = len(line) - len(line.lstrip())
        while text.startswith("- ") or text == "-":
            above = [each for each in above if each[0] < indent or (each[0] == indent and not each[2])]
            path = tuple(key for _, key, _ in above)
            items[path] = items.get(path, -1) + 1
            above.append((indent, str(items[path]), True))
            rest = text[1:].lstrip()
            indent += len(text) - len(rest)
            text = rest
        if text == "---":  # another document
            above, text = [], ""
        if key := _KEY.fullmatch(text):
            above = [*(each for each in above if each[0] < indent), (indent, key[1], False)]
        path, value = tuple(name for _, name, _ in above), (key[2] if key else text) or ""
        if path and value and not text.startswith("#"):
            found += _flow_pairs(path, value)
    return found


def _flow_pairs(path: tuple[str, ...], value: str) -> Iterator[Pair]:
    """Yield the pairs of ``{a: 1, b: {c: [d]}}``; a list of plain values stays as it is."""
    if len(path) > _DEEPEST or (not value.startswith("{") and not re.match(r"\[\s*\{", value)):
        yield path, value.strip("\"'")
        return
    for number, part in enumerate(_split_commas(value[1:-1])):
        key = _KEY.fullmatch(part) if value.startswith("{") else None
        if key:
            yield from _flow_pairs((*path, key[1]), key[2] or "")
        elif value.startswith("["):
            yield from _flow_pairs((*path, str(number)), part)


def _split_commas(text: str) -> Iterator[str]:
    """Split at commas outside brackets and quotation marks."""
    deep, quote, begin = 0, "", 0
    for at, letter in enumerate(text):
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        else:
            deep += (letter in "[{") - (letter in "]}")
            if letter == "," and not deep:
                yield text[begin:at].strip()
                begin = at + 1
    yield text[begin:].strip()


def _bytes(text: str) -> int | None:
    size = _SIZE.fullmatch(text)
    return int(float(size[1]) * _FACTORS[size[2].lower()]) if size else None


def _answers(shm: int | None, memlock: str) -> dict[Question, str | HostError]:
    found: dict[Question, str | HostError] = {}
    if shm is not None:
        found["statvfs", "/dev/shm"] = json.dumps({"total": shm, "available": shm})
    soft = memlock.partition(":")[0]
    if soft.lstrip("-").isdecimal() or soft == "unlimited":
        limit = None if soft.startswith("-") or soft == "unlimited" else int(soft)
        found["rlimit", "RLIMIT_MEMLOCK"] = json.dumps([limit, limit])
    return found


def command(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options and values of the first `docker run` that gives a container GPUs."""
    line = next((each[:4000] for each in whole(lines) if _RUN.search(each[:4000]) and _GPUS.search(each[:4000])), "")
    return [(match[1], match[2] or "") for match in _OPTIONS.finditer(line)]


def limits(lines: Sequence[str]) -> dict[Question, str | HostError]:
    """Return the room in /dev/shm and the limit on locked memory of a container.

    >>> limits(["docker run --gpus all --shm-size=1g --ulimit memlock=-1 image"])
    {('statvfs', '/dev/shm'): '{"total": 1073741824, "available": 1073741824}', ('rlimit', 'RLIMIT_MEMLOCK'): '[null, null]'}
    """  # noqa: E501
    if given := command(lines):
        if any("default-shm-size" in line for line in lines):  # of dockerd's own file
            given = [*given, ("--ipc", "host")]
        memlock = next((value[8:] for name, value in given if name == "--ulimit" and value.startswith("memlock=")), "")
        return _answers(_shm_of_docker(given), memlock)
    found = pairs(lines)
    if any(path[0] == "services" for path, _ in found):
        return _compose_limits(found)
    return _answers(_shm_of_pod(found), "")


def _shm_of_docker(given: Sequence[tuple[str, str]]) -> int | None:
    if ("--ipc", "host") in given or any("/dev/shm" in value for _, value in given):
        return None
    size = next((value for name, value in given if name == "--shm-size"), "")
    return _bytes(size.rstrip("\"'")) if size else _DEFAULT


def _compose_limits(found: Sequence[Pair]) -> dict[Question, str | HostError]:
    """Return the limits of the first service with GPUs."""
    own = [(path[2:], value) for path, value in found if path[0] == "services" and path[1] == _service(found)]
    at = dict(own)
    memlock = next((at[path] for path in _MEMLOCK if path in at), "")
    shared = at.get(("ipc",)) or any("/dev/shm" in value for _, value in own)
    size = at.get(("shm_size",))
    return _answers(None if shared or not own else _bytes(size) if size else _DEFAULT, memlock)


_MEMLOCK = (("ulimits", "memlock"), ("ulimits", "memlock", "soft"))


def _service(found: Sequence[Pair]) -> str:
    """Return the name of the first service with GPUs in a compose file; empty if none."""
    own = [(path, value) for path, value in found if len(path) > 2 and path[0] == "services"]
    gives = (path[1] for path, value in own if "gpu" in value.lower() or value == "nvidia")
    return next(gives, "")


def _shm_of_pod(found: Sequence[Pair]) -> int | None:
    """Return the bytes of /dev/shm of a complete manifest's pod; None: the host's, large, or not shown."""
    at = dict(found)
    asked = [_bytes(value) or 0 for path, value in found if path[-1] == "nvidia.com/gpu"]
    if not at.get(("kind",)) or max(asked, default=0) < 2 or any(path[-1] == "hostIPC" for path, _ in found):
        return None
    mounts = [path[:-1] for path, value in found if path[-1] == "mountPath" and value.rstrip("/") == "/dev/shm"]
    if not mounts:
        return _DEFAULT
    name = at.get((*mounts[0], "name"))
    volumes = [path[:-1] for path, value in found if path[-1] == "name" and value == name and "volumes" in path]
    size = at.get((*volumes[0], "emptyDir", "sizeLimit")) if volumes else None
    return _bytes(size) if size else None


def devices(lines: Sequence[str]) -> dict[str, int]:
    """Return how many NICs a container is given, by the name of the resource or device; empty: the text does not say.

    >>> devices(["kind: Pod", "limits:", "  vpc.amazonaws.com/efa: 4"])
    {'vpc.amazonaws.com/efa': 4}
    """
    if given := command(lines):
        verbs = [value.partition(":")[0] for name, value in given if name == "--device" and "uverbs" in value]
        return {"/dev/infiniband/uverbs*": len(set(verbs))} if verbs else {}
    written = pairs(lines)
    found: dict[str, int] = {}
    for path, value in written:
        if _NICS.fullmatch(path[-1]) and value.isdecimal() and not _SHARED.search(path[-1]):
            found[path[-1]] = int(value)
    if attached := _attached(lines, written):
        return found or attached
    return {EFA: 0} if not any(_NICS.fullmatch(path[-1]) for path, _ in written) and _asks_alone(written) else found


_GKE, _MULTUS = "networking.gke.io/interfaces", "k8s.v1.cni.cncf.io/networks"
_ATTACHED = re.compile(r"\"(?:network|name)\"\s{0,4}:\s{0,4}\"([\w./-]{0,60}rdma[\w./-]{0,60})\"")
_LONGEST = 8000


def _attached(lines: Sequence[str], written: Sequence[Pair]) -> dict[str, int]:
    """Return how many RDMA networks a pod's annotation attaches, one for each NIC; empty: none, or all NICs are shared.

    A single network of Multus may be that of a shared device.
    """
    at, text = {path[-1]: value for path, value in written}, "\n".join(lines).replace("\\", "")
    if at.get("hostNetwork") == "true" or any(_NICS.fullmatch(key) and _SHARED.search(key) for key in at):
        return {}
    gke, multus = (_ATTACHED.findall(text.partition(name)[2].partition("]")[0][:_LONGEST]) for name in (_GKE, _MULTUS))
    multus = multus or [each for each in at.get(_MULTUS, "").split(",") if re.search("rdma|sriov|hostdev", each)]
    return {_GKE: len(gke)} if gke else {_MULTUS: len(multus)} if len(multus) > 1 else {}


def _asks_alone(written: Sequence[Pair]) -> bool:
    """Return whether a complete manifest gives its pods GPUs, and no devices but the requested ones."""
    at = {path[-1]: value for path, value in written}
    return "kind" in at and "nvidia.com/gpu" in at and "true" not in (at.get("privileged"), at.get("hostNetwork"))


def problems(lines: Sequence[str]) -> Iterator[dict[str, str | bool]]:
    """Yield what a container lacks for a multi-node job."""
    text, found = "\n".join(lines), pairs(lines)
    if given := command(lines):
        words = [f"{name}={value}" for name, value in given]
        yield from _without_device(text, words, "docker run")
        reached = any(word.startswith(("--network=", "--net=")) and "bridge" not in word for word in words)
        if re.search(_SEVERAL, text) and not reached:
            yield _of_container("--network", "is not host: other nodes do not reach the container", "--network=host")
    elif service := _service(found):
        words = [f"{'/'.join(path[2:])}={value}" for path, value in found if path[:2] == ("services", service)]
        yield from _without_device(text, words, "the service")
    else:
        yield from _missing_ipc_lock(found)
        yield from _low_limits(found)
    yield from _unmounted(text, command(lines), found)


_PER_RANK, _MEMORY = 2, 2 << 30
_CPU = re.compile(r"(\d{1,7})(m?)")


def _low_limits(found: Sequence[Pair]) -> Iterator[dict[str, str | bool]]:
    """Report CPU and memory limits of a pod that are too low for one rank per GPU."""
    at = {path: value for path, value in found if "limits" in path}
    for path, value in at.items():
        gpus, cpu = at.get((*path[:-1], "nvidia.com/gpu"), ""), _CPU.fullmatch(value)
        memory = _bytes(value) if path[-1] == "memory" and gpus.isdecimal() else None
        if memory is not None and memory < int(gpus) * _MEMORY:
            message = f"is {value}, for the ranks of {gpus} GPUs: CUDA and torch alone take 2 GiB of each"
            remedy = "set limits.memory to at least 8Gi for each rank"
            yield {"subject": "limits.memory", "message": message, "remedy": remedy, "harmless": True}
        if path[-1] == "cpu" and cpu and gpus.isdecimal():
            count = int(cpu[1]) / (1000 if cpu[2] else 1)
            if count < _PER_RANK * int(gpus):  # each keeps NCCL's proxies busy
                message = f"is {value}, for the ranks of {gpus} GPUs: each keeps two threads and more busy"
                remedy = "raise limits.cpu, or leave it out and keep the request"
                yield {"subject": "limits.cpu", "message": message, "remedy": remedy, "harmless": True}


_NAMED_FILE = re.compile(r"(NCCL_(?:TOPO|GRAPH|TOPO_DUMP|CONF)_FILE)[\"']?\s?[=:,]\s{0,8}[\"']?(/[\w./-]{1,200})")


def _unmounted(text: str, given: Sequence[tuple[str, str]], found: Sequence[Pair]) -> Iterator[dict[str, str | bool]]:
    """Report a variable that names a host file which no volume mounts into the container."""
    mounts = [value for name, value in given if name in ("-v", "--volume", "--mount")]
    mounts += [value for path, value in found if path[-1] == "mountPath" or "volumes" in path]
    inside = [part.removeprefix("dst=").removeprefix("target=") for each in mounts for part in re.split("[:,]", each)]
    for name, file in dict.fromkeys(_NAMED_FILE.findall(text)):
        folder = file.rpartition("/")[0]
        of_host = folder == "/opt/microsoft" or re.search(rf"ls(?: -\w{{1,8}})? {re.escape(folder)}(?:/|\b)", text)
        seen = any(part.startswith("/") and f"{file}/".startswith(f"{part.rstrip('/')}/") for part in inside)
        if (given or any(path[-1] == "image" for path, _ in found)) and of_host and not seen:
            message = f"names {file}, a file of the host that no volume brings into the container"
            yield {"subject": name, "message": message, "remedy": f"add `-v {folder}:{folder}:ro`"}


_SEVERAL = r"--nnodes[= ][\"']?(?:[2-9]|\d\d)"
_OF_FABRIC = rf"NCCL_IB_HCA|NCCL_IB_GID_INDEX|FI_PROVIDER[=:] ?[\"']?efa|{_SEVERAL}"
_NO_FABRIC = r"NCCL_IB_DISABLE[=:] ?[\"']?1|NCCL_NET[=:] ?[\"']?Socket"


def _of_container(subject: str, message: str, option: str) -> dict[str, str | bool]:
    return {"subject": subject, "message": message, "remedy": f"add `{option}`", "harmless": True}


def _without_device(text: str, words: Sequence[str], where: str) -> Iterator[dict[str, str | bool]]:
    if any(re.match("--privileged|privileged=true", word) for word in words) or re.search(
        r"infiniband|MOFED|\brdma|/dev:/dev", " ".join(words)
    ):
        return
    if re.search(_OF_FABRIC, text) and not re.search(_NO_FABRIC, text):
        message = f"is not given to the container of {where}: NCCL finds no RDMA device and uses TCP between nodes"
        yield _of_container("/dev/infiniband", message, "--device=/dev/infiniband --ulimit memlock=-1")


def _missing_ipc_lock(found: Sequence[Pair]) -> Iterator[dict[str, str | bool]]:
    """Report a pod with RDMA devices that may not lock memory. EFA's plugin grants what it needs."""
    nics = [path[-1] for path, _ in found if _NICS.fullmatch(path[-1]) and path[-1] not in (EFA, "rdma/ib")]
    may = any("IPC_LOCK" in value or "SYS_ADMIN" in value or value == "ALL" for _, value in found) or any(
        path[-1] == "privileged" and value == "true" for path, value in found
    )
    if nics and not may and dict(found).get(("kind",)):
        yield {
            "subject": "securityContext",
            "message": f"lacks IPC_LOCK, though the pod asks for {nics[0]}: it cannot lock the memory that NICs use, "
            "unless containerd's own limit is unlimited",
            "remedy": 'add `securityContext: {capabilities: {add: ["IPC_LOCK"]}}` to the container',
            "harmless": True,
        }


def workers(lines: Sequence[str]) -> Mapping[str, int]:
    """Return the number of GPUs of a job's container or allocation, by the words that state it."""
    found: dict[str, int] = {}
    for name, value in command(lines):
        listed = re.fullmatch(r"[\\\"']{0,3}device=([\d,]{1,60})[\\\"']{0,3}", value) if name == "--gpus" else None
        if listed or (name == "--gpus" and value.isdecimal()):
            found[f"--gpus {value}"] = len(listed[1].split(",")) if listed else int(value)
    for path, value in pairs(lines):
        if path[-1] == "nvidia.com/gpu" and value.isdecimal():
            found[f"nvidia.com/gpu: {value}"] = int(value)
        elif path[-1] == "count" and "reservations" in path and value.isdecimal():
            found[f"count: {value}"] = int(value)
    for line in lines:
        asked = re.match(r"#SBATCH\s+--(?:gpus-per-node|gres)[= ](?:gpu:)?(?:[a-z][\w.-]{1,30}:)?(\d{1,2})\b", line)
        if asked:
            found[line.split()[1]] = int(asked[1])
    return found
