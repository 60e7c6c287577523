"""Texts as tools print them on a healthy node, for tests of what people paste."""

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from ncclprobe.commands import main

IBSTAT = """\
$ ibstat
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: {state}
\t\tPhysical state: {physical}
\t\tRate: 400
\t\tBase lid: 42
\t\tLink layer: InfiniBand
"""
DEVINFO = """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tboard_id:\t\t\tMT_0000000838
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tport_lid:\t\t42
\t\t\tlink_layer:\t\tEthernet
"""
QUERY = """\
==============NVSMI LOG==============

Driver Version                            : 550.127.08
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    Compute Mode                          : Exclusive_Process
    GPU UUID                              : GPU-0000026d-0000-4000-8000-000000000000
    MIG Mode
        Current                           : Disabled
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 8x
"""
LIST = "GPU 0: NVIDIA H200 (UUID: GPU-0000026d-0000-4000-8000-000000000000)\n"
NVLINK = LIST + "\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\t0-55\t0
GPU1\tNV18\t X \tSYS\t56-111\t1
NIC0\tPIX\tSYS\t X \t\t

Legend:

  X    = Self
"""
SMI = """\
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   34C    P0             70W /  700W |       4MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                    2 |
| N/A   31C    P0             69W /  700W |       4MiB /  81559MiB |      0%   E. Process |
|                                         |                        |             Disabled |
"""


def doctored(*texts: str) -> dict[str, Any]:
    """Return the report of the doctor on pasted texts, each in a file of its own; what it refuses has no checks."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        paths = [Path(folder) / f"{number}.txt" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        code = main(["doctor", "--no-config", "--json", "-", *map(str, paths)])
    refused = {"checks": [], "status": "refused", "exit_code": code}
    found: dict[str, Any] = json.loads(printed.getvalue()) if printed.getvalue() else refused
    return found


def objections(report: dict[str, Any]) -> list[str]:
    """Return what the doctor objects to, with the values in its words."""
    return [
        f"{check['id']}:{each['severity']}:{each['subject']}:{each['blame']}:{each['action']}: {each['message']}"
        for check in report["checks"]
        for each in check["findings"]
    ]


def judged(text: str) -> dict[str, object]:
    """Return what is kept of the doctor's report on a pasted text, as a value for each finding."""
    report = doctored(text)
    found = {f"{number}": each.partition(": ")[::2] for number, each in enumerate(objections(report))}
    rows = {at: {"of": of, "says": says} for at, (of, says) in found.items()}
    return {"ends": f"{report['status']}/{report['exit_code']}", "findings": [*rows.values()]}
