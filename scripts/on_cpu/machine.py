"""A machine that seems to have GPUs: variables of the stand-ins, a topology for NCCL, and a namespace with devices."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME, MEMORY_MB, LINKS = "NVIDIA H100 80GB HBM3", 81559, 18
CUDA = 13000
"""What the driver of `_DRIVER` has, as torch's build for CUDA 13 needs."""
FAST = {"NCCL_NTHREADS": "64", "NCCL_MAX_NCHANNELS": "2"}
"""What makes NCCL some 5 times as fast there."""
_SWITCHES = 4
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
if [ -n "$1" ]; then
  hostname "$1"
  echo "127.0.0.1 localhost $1" > /proc/driver/hosts
  mount --bind /proc/driver/hosts /etc/hosts
fi
shift
exec "$@"
"""


def impossible() -> str | None:
    """Why such a machine cannot be made here, or None."""
    if os.geteuid() != 0:
        return "needs root, for a mount namespace with devices"
    return None if shutil.which("unshare") else "needs `unshare`: install util-linux"


def inside(command: Sequence[object], hostname: str = "") -> list[str]:
    """The command line that runs `command` in a namespace with the devices of the GPUs."""
    spaces = ["unshare", "--mount", "--propagation", "private", *(["--uts"] if hostname else [])]
    return [*spaces, "sh", "-c", _ENTER, "sh", _DRIVER, hostname, *map(str, command)]


def variables(lib: Path, out: Path, gpus: int = 8, host: int = 0) -> dict[str, str]:
    """What a process needs to find the stand-ins in `lib` and to see `gpus` GPUs; the topology is written to `out`."""
    buses = [f"0000:{0x1A + 0x10 * number:02x}:00.0" for number in range(gpus)]
    path = out / f"topology-{gpus}.xml"
    path.write_text(_topology(buses))
    shown: Mapping[str, object] = {
        "FAKE_NVML_GPUS": gpus,
        "FAKE_NVML_BUS": ",".join(buses),
        "FAKE_NVML_LINKS": LINKS,
        "FAKE_NVML_SWITCHED": 1,
        "FAKE_NVML_CUDA": CUDA,
        "FAKE_NVML_NAME": NAME,
        "FAKE_NVML_MEMORY_MB": MEMORY_MB,
        "FAKE_NVML_HOST": host,
        "NCCL_TOPO_FILE": path,
        "LD_LIBRARY_PATH": lib,
        "PYTHONPATH": ROOT,
        "OMP_NUM_THREADS": 1,
        "PYTHONDONTWRITEBYTECODE": 1,
    }
    return {name: str(value) for name, value in shown.items()}


def _topology(buses: Sequence[str]) -> str:
    """NCCL's topology: two sockets, GPUs on PCIe, each with links to all switches."""
    lines = ['<system version="1">']
    for numa in range(2):
        processor = 'affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'
        lines.append(f'  <cpu numaid="{numa}" {processor}>')
        for number, bus in enumerate(buses):
            if number * 2 // len(buses) != numa:
                continue
            lines += [
                f'    <pci busid="{bus}" class="0x030200" vendor="0x10de" device="0x2330" subsystem_vendor="0x10de"'
                ' subsystem_device="0x16c1" link_speed="32.0 GT/s PCIe" link_width="16">',
                f'      <gpu dev="{number}" sm="90" rank="{number}" gdr="1">',
            ]
            counts = [LINKS // _SWITCHES + (each < LINKS % _SWITCHES) for each in range(_SWITCHES)]
            for each, count in enumerate(counts):
                lines.append(f'        <nvlink target="0000:f{each}:00.0" count="{count}" tclass="0x068000"/>')
            lines += ["      </gpu>", "    </pci>"]
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>", ""])
