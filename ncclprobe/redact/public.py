"""Names that every site has: words of public programs and systems, versions, and files of public source trees.

Support needs them, and they identify no one. The words of messages are those of the table that `explain` reads.
"""

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import resources

_MESSAGES, _WORDS = "logs/messages.tsv", "redact/words.txt"
"""The words of messages, and those of systems, programs, models and plain English that the messages lack."""
_VERSION = re.compile(
    r"v?\d{1,12}(?:rc\d{1,3}|[a-z])?"
    r"|(?:c|cu|cuda|cp|py|python|cudnn|el|gcc|libc|overlay|rocm|sm|pci|gpu|nic|nvidia|nvswitch|uverbs|channel)\d{1,6}"
)
SOURCE = re.compile(
    r"(?:/lib/python3\.\d{1,2}/(?!(?:site|dist)-packages)(?:[\w.-]{1,80}/){0,8}\w{1,80}\.py"
    r"|(?:/(?:site|dist)-packages|^|/workspace|/opt)/(?:torch(?:vision|audio)?|pytorch|nccl|nvshmem|gloo|megatron"
    r"|deepspeed|transformers|lightning|vllm|sglang|accelerate|flash_attn|transformer_engine|apex|triton|jax|tensorflow"
    r"|horovod|nvidia|dvs/p4/build/sw)(?:/[\w.+-]{1,80}){1,16}\.(?:py|cc|cpp|cu|cuh|h|hpp|c|so(?:\.\d{1,9}){0,4}))$"
)
"""A file of Python or of a public source tree."""
_PSEUDONYM = re.compile(r"(?:name|host|user|serial)-[0-9a-f]{8,12}")
_KERNEL_FILE = re.compile(r"(?:cgroup|cpu|cpuacct|cpuset|hugetlb|io|memory|misc|pids|rdma)\.[a-z0-9_.]{1,60}")
_PIECES = re.compile(r"(?:name|host|user|serial)-[0-9a-f]{8,12}(?![^\W_])|[^\W_]+|[\W_]+")


_EVERYONES_DOMAINS = (
    "amazon.com amazonaws.com amd.com anaconda.com anaconda.org apache.org azure.com broadcom.com cloudflare.com"
    " debian.org docker.com example.com example.net example.org fedoraproject.org github.com githubusercontent.com"
    " gitlab.com gmail.com gnu.org google.com googleapis.com huggingface.co ibm.com ingest.sentry.io intel.com"
    " ghcr.io k8s.io kernel.org kubernetes.io mellanox.com microsoft.com mozilla.org nvcr.io nvidia.com open-mpi.org"
    " openai.com oracle.com oraclecloud.com pypi.org python.org pythonhosted.org pytorch.org quay.io readthedocs.io"
    " redhat.com schedmd.com slack.com stackoverflow.com ubuntu.com wandb.ai windows.net cluster.local"
    " svc.cluster.local ec2.internal compute.internal google.internal metadata.google.internal"
)
_EVERYONES = frozenset(_EVERYONES_DOMAINS.split())


@lru_cache(maxsize=1)
def _words() -> frozenset[str]:
    package = resources.files("ncclprobe")
    messages, words = (package.joinpath(path).read_text(encoding="utf-8").lower() for path in (_MESSAGES, _WORDS))
    return frozenset((*re.findall(r"[a-z]{2,}", messages), *words.split(), *sys.stdlib_module_names))


def is_public(word: str) -> bool:
    """Return whether machines of every site may have `word`: of a message or the system, a number, a version."""
    return (
        len(word) == 1
        or word.lower() in _words()
        or bool(_VERSION.fullmatch(word.lower()) or _PSEUDONYM.fullmatch(word))
    )


def is_everyones(name: str) -> bool:
    """Return whether a domain is one that all sites use."""
    labels = name.split(".")
    return any(".".join(labels[at:]) in _EVERYONES for at in range(len(labels)))


def renamed(part: str, pseudonym: Callable[[str], str]) -> str:
    """Return a part of a path, or a file's name, with each run of words that are not public replaced."""
    return "".join(pseudonym(run) if own else run for run, own in _runs(part))


def strange(part: str) -> list[str]:
    """Return the runs of words in a part of a path that are not public."""
    return [run for run, own in _runs(part) if own]


def _runs(part: str) -> list[tuple[str, bool]]:
    """Split a part into public pieces, with separators, and runs of other words; true marks the latter."""
    if _KERNEL_FILE.fullmatch(part):  # a control group's own, in a folder that users name
        return [(part, False)]
    runs: list[tuple[str, bool]] = []
    for piece in _PIECES.findall(part):
        own = piece[0].isalnum() and not is_public(piece)
        if own and len(runs) > 1 and runs[-2][1]:  # a separator between two of them belongs to the run
            runs[-2:] = [(runs[-2][0] + runs[-1][0] + piece, True)]
        else:
            runs.append((piece, own))
    return runs
