"""Public names: words of public programs and systems, versions, and files of public source trees.

Support needs them, and they identify no one. Words of messages come from the table that `explain` reads.
"""

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import resources

_FOLDERS = (
    "alternatives apt archive asound bin boot cells cgroup cloud conf console containerenv cpuset dev dist dmi"
    " dockerenv downloads dt envs etc exe exports fs home hyperv include jobs kvp labels ld lib32 lib64 linux64 maps"
    " mnt mounts nfs nobody nsswitch opt packages podinfo proc profiles projects relr resolv rootfs rw sbin scratch"
    " share slice snap source spool srv stage stderr stdout stubs sudoers sys sysctl syslog target targets third tmp"
    " triggers uid usr var venv venvs vmlinuz volume volumes wheel wheels workdir workspace zfs"
)
_PROGRAMS = (
    "anaconda apptainer azure buildkit clang cmake conda containerd cri crio dcgmi debian dpkg fabricmanager fleet"
    " fsx gcc gnu google gpfs grub hostengine hpc hpcx idmapd intel jaxlib kubeflow kubepods kueue ldap lenovo lustre"
    " lxc mamba megatron micromamba miniconda miniconda3 mlnx mofed mysql ncclprobe nginx numpy nvhpc nvidiactl oci"
    " ofed openai openib oracle overlay pandas pingpong pip podman prrte pyenv scipy security sglang shell singularity"
    " spack systemd tensorboard tensorflow torchaudio torchelastic torchvision transformers trl ubuntu vllm wandb"
    " xformers"
)
_PARTS = (
    "aarch64 abi amd amd64 arm64 bm coreos crypto cublas cublaslt cudadevrt cudart cudnn cufft cufile cupti cupy"
    " curand cusolver cusparse cusparselt cxxabi dell dgx dl ecdsa ed25519 efa epyc fastrak generic gib glibc glibcxx"
    " gomp governor gpudirecttcpx hbm3 hcoll hgx hwloc ibext irdma libexec libpod mkey mpi mpich mvapich ncclnet"
    " nistp256 nistp384 nistp521 nl numa nvjitlink nvl nvme nvrtc nvshmem nvtx phb pix powerpc64le ppc64le psm2"
    " pthread pxb rdmacm rt spectrum spectrumx ssl stdc supermicro sxm tcpx tcpxo toolkit tun ucc uccl ucp ucs uct"
    " unified uverbs uvm verbs virtme x86 x8664 xeon yaml z zg"
)
_MODELS = "bert deepseek gemma gpt llama mistral mixtral qwen resnet"
_NAMES = frozenset(f"{_FOLDERS} {_PROGRAMS} {_PARTS} {_MODELS}".split())
"""Names of folders, programs, libraries and models that the table of messages lacks."""
_ENDINGS = (
    "bin bz2 cc cfg ckpt conf cpp csv cu db err gz h5 hpp idx ini ipynb jsonl npy npz onnx out parquet pkl pt pth py"
    " rpm safetensors sbatch sh sif slurm so sqlite tar tfrecord tgz toml tsv txt webp whl xml xz yaml yml zip zst"
)
_SUFFIXES = frozenset(_ENDINGS.split())
_VERSION = re.compile(
    r"v?\d{1,12}(?:rc\d{1,3}|[a-z])?"
    r"|(?:c|cu|cuda|cp|py|python|cudnn|el|gcc|libc|overlay|rocm|sm|pci|gpu|nic|sha|md|nvidia|nvswitch|uverbs|channel)\d{1,6}"
)
SOURCE = re.compile(
    r"(?:/lib/python3\.\d{1,2}/(?!(?:site|dist)-packages)(?:[\w.-]{1,80}/){0,8}\w{1,80}\.py"
    r"|(?:/(?:site|dist)-packages|^|/workspace|/opt|/third_party)/(?:torch(?:vision|audio|titan|ft)?|(?:py)?torch(?:_lightning)?|nccl|nvshmem|gloo|megatron|nemo"
    r"|deepspeed|transformers|lightning(?:_fabric)?|vllm|sglang|accelerate|flash_attn|transformer_engine|apex|triton|jax|tensorflow"
    r"|ray|verl|openrlhf|trl|peft|datasets|deep_ep|colossalai|xformers|tensorrt_llm|composer|unsloth|fairscale|dask|cupy|numpy"
    r"|huggingface_hub|horovod|nvidia|dvs/p4/build/sw)(?:/[\w.+-]{1,80}){1,16}\.(?:py|cc|cpp|cu|cuh|h|hpp|c|so(?:\.\d{1,9}){0,4}))$"
)
"""A file of Python or of a public source tree."""
_PSEUDONYM = re.compile(r"(?:name|host|user|serial)-[0-9a-f]{8,12}")
_KERNEL_FILE = re.compile(r"(?:cgroup|cpu|cpuacct|cpuset|hugetlb|io|memory|misc|pids|rdma)\.[a-z0-9_.]{1,60}")
_PIECES = re.compile(r"(?:name|host|user|serial)-[0-9a-f]{8,12}(?![^\W_])|[^\W_]+|[\W_]+")


_EVERYONES_DOMAINS = (
    "amazon.com amazonaws.com public.ecr.aws amd.com anaconda.com anaconda.org apache.org azure.com broadcom.com"
    " cloudflare.com debian.org docker.com example.com example.net example.org fedoraproject.org github.com"
    " githubusercontent.com gitlab.com gmail.com gnu.org google.com googleapis.com huggingface.co ibm.com"
    " ingest.sentry.io intel.com ghcr.io k8s.io kernel.org kubernetes.io mellanox.com microsoft.com mozilla.org"
    " nvcr.io nvidia.com open-mpi.org openai.com oracle.com oraclecloud.com pypi.org python.org pythonhosted.org"
    " pytorch.org quay.io readthedocs.io redhat.com schedmd.com slack.com stackoverflow.com ubuntu.com wandb.ai"
    " windows.net microsoftonline.com login.microsoftonline.com cluster.local svc.cluster.local ec2.internal"
    " compute.internal google.internal metadata.google.internal"
)
_EVERYONES = frozenset(_EVERYONES_DOMAINS.split())
"""Domains of vendors, registries, hubs and clouds, which every site uses, and of documentation."""


@lru_cache(maxsize=1)
def _words() -> frozenset[str]:
    messages = resources.files("ncclprobe.logs").joinpath("messages.tsv").read_text(encoding="utf-8").lower()
    return _NAMES | sys.stdlib_module_names | {*re.findall(r"[a-z]{2,}", messages)}


def is_public(word: str) -> bool:
    """Return whether any site's machines may have `word`: a word of messages or the system, a number, a version."""
    known, word = _words(), word.lower()
    if len(word) == 1 or word in known or (word.startswith("lib") and (word[3:] in known or len(word) == 4)):
        return True
    return bool(_VERSION.fullmatch(word) or _PSEUDONYM.fullmatch(word))


def is_file(name: str) -> bool:
    """Return whether a name has a file suffix."""
    return name.rpartition(".")[2].lower() in _SUFFIXES and "." in name


def is_everyones(name: str) -> bool:
    """Return whether a domain is one that all sites use."""
    labels = name.split(".")
    return any(".".join(labels[at:]) in _EVERYONES for at in range(len(labels)))


def is_everyones_own(name: str) -> bool:
    """Return whether `name` is exactly such a domain: a label before it may be a site's."""
    return name.lower() in _EVERYONES


def renamed(part: str, pseudonym: Callable[[str], str]) -> str:
    """Replace each run of non-public words in a part of a path or a file name."""
    return "".join(pseudonym(run) if own else run for run, own in _runs(part))


def strange(part: str) -> list[str]:
    """Return the runs of non-public words in a part of a path."""
    return [run for run, own in _runs(part) if own]


def _runs(part: str) -> list[tuple[str, bool]]:
    """Split a part into public pieces, with separators, and runs of other words; true marks the latter."""
    if _KERNEL_FILE.fullmatch(part):  # a control group's own, in a folder that users name
        return [(part, False)]
    runs: list[tuple[str, bool]] = []
    pieces = _PIECES.findall(part)
    for at, piece in enumerate(pieces):
        suffix = piece.lower() in _SUFFIXES and pieces[at - 1 : at] == ["."] and at == len(pieces) - 1
        own = piece[0].isalnum() and not suffix and not is_public(piece)
        if own and len(runs) > 1 and runs[-2][1]:  # a separator between two of them belongs to the run
            runs[-2:] = [(runs[-2][0] + runs[-1][0] + piece, True)]
        else:
            runs.append((piece, own))
    return runs
