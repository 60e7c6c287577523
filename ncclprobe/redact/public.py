"""Names that every site has: words of public programs and systems, versions, and files of public source trees.

Support needs them, and they identify no one. The words of messages are those of the table that `explain` reads.
"""

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import resources

_SYSTEM = (
    "aarch64 abi alternatives anaconda apptainer apt archive asound azure besteffort bin boot buildkit burstable cgroup"
    " cloud conda conf containerd containerenv cpuset cri crio cublas cudart cudnn cufft cupti curand cusolver cusparse"
    " cusparselt cxxabi debian devel dist dmi dockerenv downloads dpkg dt etc exe exports fabricmanager fastrak fs"
    " fsx gcc generic gib glibc glibcxx gnu google governor gpfs gpudirecttcpx grub guaranteed hcoll home hostengine"
    " hotplug hpc hpcx ibext idmapd intel jobs kubepods ld lib32 lib64 libc libcrypto libcublas libcublaslt libcuda"
    " libcudadevrt libcudart libcudnn libcufft libcufile libcupti libcurand libcusolver libcusparse libcusparselt libdl"
    " libefa libexec libgcc libgomp libhwloc libm libmlx5 libmpi libnccl libnl libnuma libnvidia libnvjitlink libnvrtc"
    " libnvshmem libpod libpsm2 libpthread librdmacm librt libssl libstdc libucp libucs libuct libz linux64 lustre lxc"
    " mamba maps micromamba miniconda miniconda3 mlnx mlx5 mnt mofed mounts ncclnet ncclprobe nfs nobody nsswitch nvhpc"
    " nvidiactl nvme nvtx oci ofed openib oracle overlay packages pingpong pip podman powerpc64le ppc64le proc profiles"
    " projects prrte psm2 pyenv relr resolv rootfs rw sbin security singularity slice snap spack spectrum spectrumx srv"
    " stage stderr stdout stubs sudoers sysctl syslog systemd target targets tcpx tcpxo tensorflow tmp torchelastic"
    " torchvision triggers tun ubuntu ucc uccl ucp uid unified usr uverbs uvm var venvs verbs virtme vmlinuz volume"
    " volumes wheel wheels workdir x86 x8664 yaml zfs zg"
)
"""Names of the system, of programs and of libraries that the table of messages lacks."""
_MESSAGES = "messages.tsv"
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


@lru_cache(maxsize=1)
def _words() -> frozenset[str]:
    text = resources.files("ncclprobe.logs").joinpath(_MESSAGES).read_text(encoding="utf-8")
    return frozenset((*re.findall(r"[a-z]{2,}", text.lower()), *_SYSTEM.split(), *sys.stdlib_module_names))


def is_public(word: str) -> bool:
    """Return whether machines of every site may have `word`: of a message or the system, a number, a version."""
    return (
        len(word) == 1
        or word.lower() in _words()
        or bool(_VERSION.fullmatch(word.lower()) or _PSEUDONYM.fullmatch(word))
    )


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
