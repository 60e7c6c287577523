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

_TYPES = re.compile(
    r"(?<![\w-])(?:"
    r"[gp]\d[a-z0-9-]{0,12}\.(?:\d{0,2}xlarge|metal)"
    r"|a\d[a-z]?-(?:high|mega|ultra|edge|max)gpu-\d{1,2}g(?:-metal)?|g[24]-standard-\d{2,3}"
    r"|standard_n[a-z0-9_]{3,40}|bm\.gpu[\w.-]{1,30}"
    r"|(?:dgx|hgx)[ _-]?(?:[abh]\d00|spark)|gb[23]00[ _-]nvl72)\b",
    re.IGNORECASE,
)
"""Names of machine types: of AWS, Google, Azure, Oracle and NVIDIA."""
_GPUS = (
    re.compile(r"(?i)nvidia\.com/gpu\.product[\"']?\s?[:=]\s?[\"']?(?:nvidia-)?([\w.-]{2,40})"),
    re.compile(r"(?i)gke-accelerator[\"']?\s?[:=]\s?[\"']?(?:nvidia-)?(?:tesla-)?([\w.-]{2,40})"),
    re.compile(r"(?i)(?:--gres[= ]gpu:|--gpus(?:-per-(?:node|task))?[= ]|gpu:)([a-z][\w.-]{1,30}):\d{1,2}\b"),
    re.compile(
        r"(?i)\b(?:\d{1,2}|two|four|eight)\s?[x×*]?\s(?:nvidia\s)?((?:[abhv]|gb)\d{2,3}0?s?(?:-[\w-]{2,20})?)\b"
    ),
)
"""Where a text names the GPUs of a node, in four ways."""
_COUNTS = (
    re.compile(r"(?i)nvidia\.com/gpu[\"']?\s?[:=]\s?[\"']?(\d{1,2})\b"),
    re.compile(r"(?i)(?:--gres[= ]gpu:|--gpus-per-node[= ])(?:[a-z][\w.-]{1,30}:)?(\d{1,2})\b"),
    re.compile(r"(?i)\b(\d{1,2}|two|four|eight)\s?[x×*]?\s(?:nvidia\s)?(?:[abhv]|gb)\d{2,3}0?s?\b"),
)
_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "sixteen": 16}
_NUMBER = rf"(\d{{1,5}}|{'|'.join(_NUMBERS)})"
_NODES = (
    re.compile(r"--nodes[= ](\d{1,5})\b"),
    re.compile(r"--nnodes[= ][\"']?(\d{1,5})\b(?!:)"),
    re.compile(r"(?:#SBATCH|srun|sbatch|salloc)\b.{0,200}?\s-N[= ]?(\d{1,5})\b"),
    re.compile(
        rf"(?i)^#.{{0,80}}?\b{_NUMBER}\s(?:[\w.-]{{1,30}}\s){{0,3}}?(?:nodes|hosts|vms|instances|trays|machines)\b"
    ),
    re.compile(rf"(?i)^#\s{{0,4}}{_NUMBER}\s(?:[x×]\s)?(?=[gp]\d[\w-]{{0,12}}\.|a\d|standard_n|bm\.gpu|dgx|hgx)"),
)
_RANKS = (
    re.compile(r"--ntasks-per-node[= ](\d{1,3})\b"),
    re.compile(r"--nproc[-_]per[-_]node[= ](\d{1,3})\b"),
    re.compile(r"(?:-npernode|--npernode|-ppn) (\d{1,3})\b"),
    re.compile(r"\bppr:(\d{1,3}):node\b"),
    re.compile(r"(?:mpirun|mpiexec)\b.{0,400}?\s-N (\d{1,3})\b"),
)
_WORLD = re.compile(r"(?:mpirun|mpiexec)\b.{0,200}?\s(?:-np|-n|--np) (\d{1,5})\b")
_HOSTS = re.compile(r"(?:mpirun|mpiexec)\b.{0,400}?\s(?:-H|--host) ([\w.:,-]{1,2000})")
_NETDEV = re.compile(r"(?:link )?([\w.-]{1,40})(?: port \d{1,3} ==> |/\d{1,3} state \w.{0,80}? netdev )([\w.-]{1,32})")
_ALONE = re.compile(r"torchrun\b.{0,200}?--standalone\b")


def described(lines: Sequence[str]) -> dict[Question, str]:
    """Return what a text names of the machine and of the job's ranks; empty: nothing.

    >>> described(["# two p5.48xlarge", "torchrun --nnodes 2 --nproc-per-node 8 train.py"])[NAMED]
    '{"type": "p5.48xlarge", "nodes": 2, "ranks": 8}'
    """
    found: dict[str, str | int | dict[str, str]] = {
        "type": _only(match[0] for line in lines for match in _TYPES.finditer(line)).rstrip(".,-"),
        "gpu": _only(match[1] for each in _GPUS for line in lines for match in each.finditer(line)),
        "gpus": _count(lines, _COUNTS),
        "nodes": _nodes(lines),
        "ranks": _count(lines, _RANKS),
        "netdevs": {match[1]: match[2] for line in lines if (match := _NETDEV.match(line.strip()))},
    }
    kept = {name: value for name, value in found.items() if value}
    return {NAMED: json.dumps(kept)} if kept else {}


def _only(words: Iterable[str]) -> str:
    """Return the word that all are; empty: there is none, or they differ."""
    found = Counter(word.lower() for word in words)
    return next(iter(found)) if len(found) == 1 else ""


def _count(lines: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> int:
    """Return the number that all matches give; 0: there is none, or they differ."""
    words = (match[1].lower() for each in patterns for line in lines for match in each.finditer(line))
    return int(_only(str(_NUMBERS.get(word, word)) for word in words) or 0)


def _nodes(lines: Sequence[str]) -> int:
    """Return the number of nodes that a launch line or a comment gives; 0: none does, or they differ."""
    if any(map(_ALONE.search, lines)):
        return 1
    if nodes := _count(lines, _NODES):
        return nodes
    hosts = [match[1] for line in lines if (match := _HOSTS.search(line))]
    if hosts:
        return len({each.partition(":")[0] for each in hosts[0].split(",") if each})
    world, here = _count(lines, (_WORLD,)), _count(lines, _RANKS)
    return world // here if here and world % here == 0 else 0
