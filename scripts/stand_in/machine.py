"""A machine that seems to have GPUs: variables of the stand-ins, and a mount namespace with devices."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "Stand-in, not a GPU"
"""Of no known GPU: reports say what they were made on, and judge no rate."""
MEMORY_MB, LINKS, CUDA = 81559, 18, 13000
_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
_ENTER = """set -e
new=$(mktemp -d)
mount -t tmpfs devices "$new"
for each in /dev/*; do
  there="$new/${each##*/}"
  if [ -d "$each" ] && [ ! -L "$each" ]; then
    mkdir "$there"
    mount --rbind "$each" "$there"
  else
    cp -a "$each" "$there"
  fi
done
for each in $(seq 0 $(($FAKE_NVML_GPUS - 1))); do mknod -m 666 "$new/nvidia$each" c 195 "$each"; done
mknod -m 666 "$new/nvidiactl" c 195 255
mknod -m 666 "$new/nvidia-uvm" c 511 0
mount --rbind "$new" /dev
mount -t tmpfs driver /proc/driver
mkdir -p /proc/driver/nvidia/gpus
echo "$1" > /proc/driver/nvidia/version
shift
exec "$@"
"""


def impossible() -> str | None:
    """Return why such a machine cannot be made here, or None."""
    if os.geteuid() != 0:
        return "needs root, for a mount namespace with devices"
    return None if shutil.which("unshare") else "needs `unshare`: install util-linux"


def inside(command: Sequence[object]) -> list[str]:
    """Return the command line that runs `command` in a namespace with the devices of the GPUs."""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh", _DRIVER, *map(str, command)]


def variables(lib: Path, work: Path, gpus: int = 8) -> dict[str, str]:
    """Return what a process needs to find the stand-ins in `lib` and to see `gpus` GPUs; notes of them go to `work`."""
    shown: Mapping[str, object] = {
        "FAKE_NVML_GPUS": gpus,
        "FAKE_NVML_BUS": ",".join(f"0000:{0x1A + 0x10 * number:02x}:00.0" for number in range(gpus)),
        "FAKE_NVML_LINKS": LINKS,
        "FAKE_NVML_SWITCHED": 1,
        "FAKE_NVML_CUDA": CUDA,
        "FAKE_NVML_NAME": NAME,
        "FAKE_NVML_MEMORY_MB": MEMORY_MB,
        "FAKE_NVML_FOLDER": work,
        "LD_LIBRARY_PATH": lib,
        "PYTHONPATH": ROOT,
        "OMP_NUM_THREADS": 1,
        "PYTHONPYCACHEPREFIX": "",  # pip has compiled torch, beside its files
    }
    return {name: str(value) for name, value in shown.items()}
