"""The machine and the ranks that pasted text names: an instance type, a GPU in a manifest, the launch line of a job.

    # two p5.48xlarge                              node.kubernetes.io/instance-type: a4-highgpu-8g
    #SBATCH --nodes=2 --gres=gpu:h100:8            torchrun --nnodes 2 --nproc-per-node 8 train.py

What is only named was not seen: it says what a machine should be, never that it is so.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ncclprobe.host import NAMED, Question
from ncclprobe.host.pasted_containers import devices
from ncclprobe.host.pasted_settings import OptionOf, whole

_MPI = re.compile(r"\b(?:mpirun|mpiexec)\b")
_SRUN = re.compile(r"\bsrun\b")
_TYPES = re.compile(
    r"(?<![\w-])(?:"
    r"[gp]\d[a-z0-9-]{0,12}\.(?:\d{0,2}xlarge|metal)"
    r"|a\d[a-z]?-(?:high|mega|ultra|edge|max)gpu-\d{1,2}g(?:-metal)?|g[24]-standard-\d{2,3}"
    r"|nd[ _-]?(?:a100|h[12]00)[ _-]?v[45]"
    r"|(?:standard_)?n[cd]\d{2,3}[a-z0-9_]{2,40}_v\d|bm\.gpu[\w.-]{1,30}"
    r"|(?:dgx|hgx)[ _-]?(?:[abh]\d00|spark)|gb[23]00[ _-]nvl72)\b",
    re.IGNORECASE,
)
"""Machine type names of AWS, Google, Azure, Oracle and NVIDIA."""
_MODEL = (
    r"(?:(?:nvidia|geforce)\s){0,2}"
    r"((?:[abhl]\d{1,3}0?|v\d{2,3}|gb\d{2,3}|l4|l40|rtx\s(?:a?\d{4}|pro\s\d{4})|[2-5]0[6-9]0)s?(?:-[\w-]{2,20})?)"
)
_NUMBERS = {"one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "sixteen": 16}
_MANY = rf"(?:\d{{1,5}}|{'|'.join(_NUMBERS)})"
_NUMBER = f"({_MANY})"
_GPUS = (
    re.compile(r"(?i)nvidia\.com/gpu\.product[\"']?\s?[:=]\s?[\"']?(?:nvidia-)?([\w.-]{2,40})"),
    re.compile(r"(?i)gpu\.nvidia\.com/(?:model|class)\b.{0,80}?\b([abhl]\d{2,3}s?|gb\d{3})(?:_\w{1,30})?\b"),
    re.compile(r"(?i)gke-accelerator[\"']?\s?[:=]\s?[\"']?(?:nvidia-)?(?:tesla-)?([\w.-]{2,40})"),
    re.compile(r"(?i)(?:--gres[= ]gpu:|--gpus(?:-per-(?:node|task))?[= ]|gpu:)([a-z][\w.-]{1,30}):\d{1,2}\b"),
    re.compile(rf"(?i)\b{_MANY}\s?[x×*]?\s{_MODEL}\b"),
    re.compile(r"GPU \d{1,3}: (.{2,60}?) \(UUID: "),
    re.compile(r"^(NVIDIA [\w .-]{2,40}), \d"),
)
"""Where a text names a node's GPUs: in manifests, requests, prose and nvidia-smi's output."""
_COUNTS = (
    re.compile(r"(?i)nvidia\.com/gpu[\"']?\s?[:=]\s?[\"']?(\d{1,2})\b"),
    re.compile(r"(?i)(?:--gres[= ]gpu:|--gpus-per-node[= ])(?:[a-z][\w.-]{1,30}:)?(\d{1,2})\b"),
    re.compile(rf"(?i)\b{_NUMBER}\s?[x×*]?\s{_MODEL}\b"),
)
_NODES = (
    re.compile(r"--nodes[= ](\d{1,5})\b"),
    re.compile(r"--nnodes[= ][\"']?(\d{1,5})\b(?!:)"),
    OptionOf(re.compile(r"#SBATCH\b|\b(?:srun|sbatch|salloc)\b"), re.compile(r"\s-N[= ]?(\d{1,5})\b")),
)
_PODS = re.compile(r"(?:- )?(?:replicas|numNodes|parallelism): ?[\"']?([2-9]|\d{2,4})[\"']?$")
_PLACES = r"(?:nodes?|hosts|vms|instances|trays|machines|servers?|box(?:es)?)\b"
_NOT_PLACES = r"(?:per|each|(?:gpu|rank|nic|hca|port|task|gcd)s?)\b"
_BUILT = r"(?:[gp]\d[\w-]{0,12}\.|a\d\w?-|(?:standard_)?n[cd]\d|bm\.gpu|dgx|hgx)"
_PROSE = (
    re.compile(rf"(?i)(?<![\w.-]){_NUMBER}[ -](?:(?!{_NOT_PLACES})[\w.-]{{1,30}}\s){{0,3}}?{_PLACES}"),
    re.compile(rf"(?i)(?<![\w.-]){_NUMBER}\s(?:[x×]\s)?{_BUILT}"),
    re.compile(rf"(?i)(?<![\w.-]){_NUMBER}[x×]\s?{_BUILT}"),
    re.compile(rf"(?i)\b{_BUILT}.{{0,40}}?,? {_NUMBER} of them\b"),
    re.compile(rf"(?i)\b{_BUILT}[\w.-]{{1,30}} [x×(] ?{_NUMBER}\b"),
)
"""Number of nodes in a sentence, or in the comment above a script."""
_RANKS = (
    re.compile(r"--ntasks-per-node[= ](\d{1,3})\b"),
    re.compile(r"--nproc[-_]per[-_]node[= ](\d{1,3})\b"),
    re.compile(r"(?:-npernode|--npernode|-ppn) (\d{1,3})\b"),
    re.compile(r"\bppr:(\d{1,3}):node\b"),
    OptionOf(_MPI, re.compile(r"\s-N (\d{1,3})\b")),
)
_WORLD = OptionOf(_MPI, re.compile(r"\s(?:-np|-n|--np) (\d{1,5})\b"))
_TASKS = OptionOf(_SRUN, re.compile(r"\s(?:-n ?|--ntasks[= ])(\d{1,5})\b"))
_HOSTS = OptionOf(_MPI, re.compile(r"\s(?:-H|--host) ([\w.:,-]{1,2000})"))
_NETDEV = re.compile(r"(?:link )?([\w.-]{1,40})(?: port \d{1,3} ==> |/\d{1,3} state \w.{0,80}? netdev )([\w.-]{1,32})")
_ALONE = re.compile(r"(?i)\s--standalone\b|\bonly this (?:node|machine)\b|\bmy (?:workstation|pc)\b")
_CUT = re.compile(
    r"nvidia-smi.{0,80}(?:\| ?(?:head|tail|sed|grep|awk)\b|\s-i[= ]?\d)|^\s{0,8}[\[<(]?(?:\.\.\.|…|snip|truncated)"
)
"""Signs that a text does not show all GPUs."""
_SOME_NICS = re.compile(
    r"(?:show_gids|ibstat|ibstatus|ibv_devinfo|ibdev2netdev|rdma link|ls /sys/class/infiniband)\b"
    r".{0,60}?(?:\| ?(?:head|tail|sed)\b|\| ?(?:[ef]?grep|awk).{0,40}(?:mlx|rdma|roce|_\d)|-d \w|"
    r"(?:mlx|rdma|roce|ibp)\w{1,20})"
)
"""Signs that a text does not show all NICs."""
_SAME = re.compile(
    r"(?i)^\s{0,8}[(\[<].{0,60}?(?:\bsame\b|identical|likewise|similar|and so on|\betc\b|omitted|left out)"
)
_NODES_OR_GPUS = re.compile(r"(?i)\b(?:nodes?|hosts?|servers?|machines?|gpus?\b|gpu\d)")
"""A remark in brackets that stands for lines that were left out, and what it may be about besides NICs."""
_RDMA = re.compile(
    r"\brdma/|/dev/infiniband|NCCL_IB_(?:HCA|GID_INDEX)\b|vpc\.amazonaws\.com/efa|\b\d{2,3}G IB\b|uverbs\d"
)
_SOURCES = re.compile(r"\s{0,40}(?:source|\.) [\w./~$\"{}-]{2,200}\s{0,8}(?:[;#&]|$)")
"""A script takes variables from a file whose text is not shown."""
_BRINGS_GIB = re.compile(r"nccl-plugin-gib|/scripts/container_entry\.sh\b|\bldconfig /usr/local/gib/")
"""Google's image, or its entry script, which puts the gIB plugin on the loader's path. The volume alone does not."""
_LONGEST, _MOST = 200, 4000
"""Characters of a line that is a sentence, and of one that is searched."""


def described(written: Sequence[str]) -> dict[Question, str]:
    """Return what a text names of the machine and of the job's ranks; empty: nothing.

    >>> described(["# two p5.48xlarge", "torchrun --nnodes 2 --nproc-per-node 8 train.py"])[NAMED]
    '{"type": "p5.48xlarge", "nodes": 2, "ranks": 8}'
    """
    lines = [line[:_MOST] for line in whole(written)]
    elided = [line for line in lines if _SAME.match(line)]
    found: dict[str, str | int | bool | list[str] | dict[str, str] | dict[str, int]] = {
        "type": _agreed_word(_azure_size(match[0]) for line in lines for match in _TYPES.finditer(line)),
        "gpu": _longest_name(match[1] for each in _GPUS for line in lines for match in each.finditer(line)),
        "gpus": _agreed_number([line for line in lines if not line.startswith("|")], _COUNTS),
        "nodes": _nodes(lines),
        "ranks": _agreed_number(lines, _RANKS),
        "withheld": _unpassed_variables(lines),
        "given": devices(written),
        "partial": any(map(_CUT.search, lines)) or any("gpu" in line.lower() for line in elided),
        "some_nics": any(map(_SOME_NICS.search, lines)) or not all(map(_NODES_OR_GPUS.search, elided)),
        "rdma": any(map(_RDMA.search, lines)),
        "sources": any(map(_SOURCES.match, lines)),
        "gib": any(map(_BRINGS_GIB.search, lines)),
        "netdevs": {match[1]: match[2] for line in lines if (match := _NETDEV.match(line.strip()))},
    }
    tasks, nodes = _agreed_number(lines, (_TASKS,)), _nodes(lines)
    if tasks and nodes and tasks % nodes == 0:
        found["ranks"] = found["ranks"] or tasks // nodes
    kept = {name: value for name, value in found.items() if value}
    return {NAMED: json.dumps(kept)} if kept else {}


_AZURES = {
    "nda100v4": "standard_nd96amsr_a100_v4",
    "ndh100v5": "standard_nd96isr_h100_v5",
    "ndh200v5": "standard_nd96isr_h200_v5",
}


def _azure_size(name: str) -> str:
    """Return Azure's size name for a series name such as ND H100 v5; any other name unchanged."""
    size = _AZURES.get(re.sub(r"[ _-]", "", name.lower()), name.lower())
    return f"standard_{size}" if size.startswith(("nc", "nd")) else size


def _agreed_word(words: Iterable[str]) -> str:
    """Return the single word that all are; empty if there is none, or they differ."""
    found = Counter(words)
    return next(iter(found)) if len(found) == 1 else ""


def _longest_name(words: Iterable[str]) -> str:
    """Return the longest name if the others are its short forms: ``L40S`` and ``NVIDIA L40S``; empty if they differ."""
    found = sorted({word.lower().replace("-", " ") for word in words}, key=len)
    return found[-1] if found and all({*each.split()} <= {*found[-1].split()} for each in found) else ""


def _agreed_number(lines: Sequence[str], patterns: Sequence[re.Pattern[str] | OptionOf]) -> int:
    """Return the number that all matches give; 0 if there is none, or they differ."""
    words = (match[1].lower() for each in patterns for line in lines for match in each.finditer(line))
    return int(_agreed_word(str(_NUMBERS.get(word, word)) for word in words) or 0)


def _nodes(lines: Sequence[str]) -> int:
    """Return the number of nodes in a launch line or comment; 0 if there is none, or they differ."""
    if any(map(_ALONE.search, lines)):
        return 1
    if nodes := _agreed_number(lines, _NODES):
        return nodes
    pods = [int(match[1]) for line in lines if (match := _PODS.fullmatch(line.strip()))]
    if pods:
        return max(pods)
    hosts = [match[1] for line in lines if (match := _HOSTS.search(line))]
    if hosts:
        return len({each.partition(":")[0] for each in hosts[0].split(",") if each})
    world, here = _agreed_number(lines, (_WORLD,)), _agreed_number(lines, _RANKS)
    if here and world and world % here == 0:
        return world // here
    return _agreed_number([line for line in lines if "=" not in line and len(line) < _LONGEST], _PROSE)


_EXPORTED = re.compile(r"export ((?:NCCL|UCX|FI|OFI_NCCL|TORCH_NCCL|NVSHMEM)_\w{1,80})=")
_OPEN_MPI = OptionOf(_MPI, re.compile(r"\s(?:--?mca|--map-by|--bind-to|-x|-npernode)\s"))
_ELSEWHERE = re.compile(r"\s--?(?:H|host|hostfile|machinefile)[= ]\S{1,2000}")
_PASSED = re.compile(r"\s-x[= ](\w{1,80})|mca_base_env_list[= ]\S")


def _unpassed_variables(lines: Sequence[str]) -> list[str]:
    """Return exported variables that Open MPI does not pass to other nodes; it passes those of ``-x`` (mpirun(1))."""
    command = next((line for line in lines if _OPEN_MPI.search(line) and _ELSEWHERE.search(line)), "")
    passed = {match[1] for match in _PASSED.finditer(command)}
    hosts = _HOSTS.search(command)
    here = hosts and len({each.partition(":")[0] for each in hosts[1].split(",")}) < 2
    if not command or here or None in passed:
        return []
    names = dict.fromkeys(match[1] for line in lines for match in _EXPORTED.finditer(line))
    return [name for name in names if name not in passed]
