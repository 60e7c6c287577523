"""What people paste of one machine, in each form; more of it is in tests/data/pasted*.txt."""

import re
from pathlib import Path

from tests.pasted_texts import IBSTAT, SMI

UP = IBSTAT.format(state="Active", physical="LinkUp")
STATISTICS = "$ ethtool -S ens3\n     rx_prio3_bytes: 918833\n     rx_prio3_discards: {}\n     rx_out_of_buffer: 0\n"


def texts_of(file: str) -> dict[str, str]:
    """Return the texts of a file of tests/data, by name: a text begins after a line `%% NAME`."""
    parts = re.split(r"(?m)^%% (.*)\n", (Path(__file__).parent / "data" / file).read_text(encoding="utf-8"))[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


FORMS = texts_of("pasted-forms.txt")


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
