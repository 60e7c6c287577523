"""Names in paths: a project's folder, a plugin of a site's own, a job. What every machine has stays as it is.

A path tells much of a site: ``/fsx/projects/NAME/venv``. Its parts are split into words; words of NCCL's world, of
Python and of the system, versions and numbers stay, and with them what is judged: which library lies where. Each run of
other words becomes one pseudonym.
"""

import re
from collections.abc import Callable

PATH = re.compile(r"(?<![\w./-])/(?:[^/\s\"',;:|<>\\][^\s\"',;:|<>\\]{0,4094})?")
"""An absolute path in a text, without what a search path or a mount puts before or after it."""

_SYSTEM = (
    "aarch64 all alternatives anaconda apt arch archive asound bin boot build cache cgroup common compat conda"
    " conf config containerenv containers core cpu cpuset current d data debian default dev devel dist dmi"
    " dockerenv downloads dpkg el7 el8 el9 env envs etc exe export exports files fs fstab fsx gcc gnu governor"
    " gpfs group grub home host hosts id idmapd include info init issue job jobs json kernel ld lib lib32 lib64 libexec"
    " limits linux linux64 local lock log logs lost lustre machine mamba maps meta metadata micromamba miniconda"
    " miniconda3 mnt modprobe module modules mount mounts name net network nfs nobody node none opt os out"
    " overlay overlay0 overlay1 overlay2 package packages path pid plugin plugins powerpc64le ppc64le private"
    " proc profile profiles project projects py pyenv python release releases resolv root rootfs run runtime sbin"
    " scope scratch security self service services session shadow share shared shm site slice snap so software"
    " spack src srv stable stage state stderr stdout step storage store stubs sudoers sys sysctl system systemd"
    " tag target targets task tasks tmp tools triggers tun txt upper user users usr var venv venvs version"
    " versions vmlinuz volume volumes work workdir workspace x86 x8664 xml yaml zfs"
)
_PROGRAMS = (
    "amazon amzn2023 apptainer aws azure besteffort buildkit burstable cloud containerd cri crio cu11 cu12 cu13"
    " cublas cuda cudart cudnn cufft cupti curand cusolver cusparse docker driver drivers dynamic efa enroot ext"
    " fabricmanager fastrak fi frontend generic gib google gpu gpudirect guaranteed hcoll hostengine hotplug hpc"
    " hpcx ib ibverbs intel internal jax json kubelet kubepods kubernetes libc libcublas libcuda libcudart"
    " libcudnn libefa libfabric libibverbs libmlx5 libnccl libnvidia libpod libpthread librdmacm libstdc libtorch"
    " libucp libucs libuct lxc m main ml mlnx mlx5 mofed mpi nccl ncclnet ncclprobe nsswitch numa nv nvhpc nvidia"
    " nvme nvml nvshmem nvtx oci ofed ofi openib openmpi oracle pip pmix pod podman profiler prrte psm2 pytorch"
    " rdma rw sharp singularity slurm slurmd slurmstepd spectrum spectrumx tcp tcpx tcpxo tensorflow topo"
    " pingpong topology torch torchrun torchvision triton tuner ubuntu ucc uccl ucp ucx uid unified verbs virtme wheel"
    " wheels x zg"
)
_PUBLIC = frozenset(f"{_SYSTEM} {_PROGRAMS}".split())
_VERSION = re.compile(r"v?\d{1,12}(?:rc\d{1,3}|[a-z])?|(?:cu|cuda|cp|py|python|cudnn|gcc|rocm|sm|pci|gpu|nic)\d{1,6}")
_OURS = re.compile(r"(?:name|host|user|serial)-[0-9a-f]{8,12}")
_KERNEL_FILE = re.compile(r"(?:cgroup|cpu|cpuacct|cpuset|hugetlb|io|memory|misc|pids|rdma)\.[a-z0-9_.]{1,60}")
_PIECES = re.compile(r"(?:name|host|user|serial)-[0-9a-f]{8,12}(?![^\W_])|[^\W_]+|[\W_]+")


def is_public(word: str) -> bool:
    """Return whether machines of every site may have `word` in a path: a word of the system, a number, a version."""
    return len(word) == 1 or word.lower() in _PUBLIC or bool(_VERSION.fullmatch(word.lower()) or _OURS.fullmatch(word))


def renamed(part: str, pseudonym: Callable[[str], str]) -> str:
    """Return a part of a path, or a file's name, with each run of words that are not public replaced."""
    return "".join(pseudonym(run) if own else run for run, own in _runs(part))


def strange(part: str) -> list[str]:
    """Return the runs of words in a part of a path that are not public."""
    return [run for run, own in _runs(part) if own]


def _runs(part: str) -> list[tuple[str, bool]]:
    """Split a part into what is public, separators with it, and runs of words that are not, and say which is which."""
    if _KERNEL_FILE.fullmatch(part):  # a control group's own, in a folder that users name
        return [(part, False)]
    runs: list[tuple[str, bool]] = []
    for piece in _PIECES.findall(part):
        word = piece[0].isalnum()
        own = word and not is_public(piece)
        if own and len(runs) > 1 and runs[-2][1]:  # a separator between two of them belongs to the run
            runs[-2:] = [(runs[-2][0] + runs[-1][0] + piece, True)]
        else:
            runs.append((piece, own))
    return runs
