"""What people paste of one machine, in each form; more of it is in tests/data/pasted*.txt."""

import re
from pathlib import Path

from tests.pasted_texts import (
    ADDRESSES,
    CUT,
    DEVINFO,
    IBSTAT,
    IBSTATUS,
    IFCONFIG,
    IP_ADDR,
    LIST,
    MATRIX,
    NVLINK,
    SMI,
    ULIMIT,
)

UP = IBSTAT.format(state="Active", physical="LinkUp")
RATES = {2.5: "Sleep", 10: "Polling", 20: "Disabled", 40: "Training", 56: "LinkUp", 100: "Link_Up"}
RATES |= {200: "LinkErrorRecovery", 400: "Broken", 800: "Up", 196: "Up", 195: "Up"}
FORMS = {
    "ibstat": IBSTAT.format(state="Initializing", physical="LinkUp"),
    "ibstatus": IBSTATUS,
    "ports of every rate": "".join(
        f"CA 'mlx5_{rate}'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: {state}\n\t\tRate: {rate}\n"
        for rate, state in RATES.items()
    ),
    "ibv_devinfo": DEVINFO,
    "rdma link": "link mlx5_0/1 state DOWN physical_state DISABLED netdev eth1\n",
    "ibdev2netdev": "mlx5_0 port 1 ==> ib0 (Up)\n",
    "quoted in a mail": "".join(f"> {line}\n" for line in DEVINFO.splitlines()),
    "srun -l": "".join(f"0: {line}\n" for line in ADDRESSES.splitlines()),
    "nvidia-smi -L": LIST,
    "ip addr": IP_ADDR,
    "ifconfig": IFCONFIG,
    "nvlink -s": NVLINK,
    "nvlink -s, cut in a GPU": CUT + CUT.replace("GPU 0", "GPU 1").rpartition("\t")[0] + "...\n",
    "topo -m": MATRIX,
    "ulimit -a": ULIMIT,
    "ulimit of zsh": "-l: locked-in-memory size (kbytes)  64\n-n: file descriptors   1024\n",
    "df -h": "Filesystem      Size  Used Avail Use% Mounted on\nshm              64M     0   32M   0% /dev/shm\n",
    "show_gids": (
        "DEV\tPORT\tINDEX\tGID\t\t\tIPv4\tVER\tDEV\n"
        "mlx5_0\t1\t0\tfe80:0000:0000:0000:5e25:73ff:feb1:c004\t\t\tv1\teth1\n"
        "mlx5_0\t1\t3\t0000:0000:0000:0000:0000:ffff:c633:6407\t198.51.100.7\tv2\teth1\nn_gids_found=2\n"
    ),
    "ibv_devinfo -v": f"{DEVINFO}\t\t\tactive_width:\t\t4X (2)\n\t\t\tactive_speed:\t\t100.0 Gbps (128)\n",
    "an address of no form": "lo UNKNOWN 127.0.0.1/8\neth0 UP 10.0.0.500/24 fe80::1/64\n",
    "versions": "Fabric Manager version is : 550.127.08\nLinux n1 5.15.0-91-generic #98 SMP x86_64\n",
    "reasons of clocks": "index, clocks_event_reasons.hw_slowdown, clocks_event_reasons.sw_power_cap\n0, Active, No\n",
    "ulimit -l": "$ ulimit -l\n64\n",
    "/proc/self/limits": "Max locked memory         65536                unlimited            bytes\n",
}
STATISTICS = "$ ethtool -S ens3\n     rx_prio3_bytes: 918833\n     rx_prio3_discards: {}\n     rx_out_of_buffer: 0\n"


def texts_of(file: str) -> dict[str, str]:
    """Return the texts of a file of tests/data, by name: a text begins after a line `%% NAME`."""
    parts = re.split(r"(?m)^%% (.*)\n", (Path(__file__).parent / "data" / file).read_text(encoding="utf-8"))[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def eight_gpus() -> tuple[str, str, str]:
    """Return what `nvidia-smi`, `nvidia-smi topo -m` and `ibstat` print on a board of eight GPUs and NICs."""
    head, *gpus = SMI.splitlines(keepends=True)
    smi = head + "".join(
        gpus[0].replace("|   0 ", f"|   {n} ").replace("00000000:19", f"00000000:{0x19 + n:02X}") + "".join(gpus[1:3])
        for n in range(8)
    )
    names = [*(f"GPU{n}" for n in range(8)), *(f"NIC{n}" for n in range(8))]
    rows = [
        "\t".join([one, *(" X " if one == two else between(one, two) for two in names)])
        + ("\t0-55\t0" if one.startswith("GPU") else "")
        for one in names
    ]
    legend = "".join(f"  NIC{n}: mlx5_{n}\n" for n in range(8))
    matrix = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity"]) + "\n" + "\n".join(rows)
    nics = "".join(UP.replace("mlx5_0", f"mlx5_{n}") for n in range(8))
    return smi, f"{matrix}\n\nNIC Legend:\n\n{legend}", nics


def between(one: str, two: str) -> str:
    return "NV18" if one[:3] == two[:3] == "GPU" else "PIX" if one[3:] == two[3:] else "NODE"
