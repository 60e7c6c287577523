#!/usr/bin/env python3
"""Read every text of a corpus of saved outputs, and compare with what its index says is in them.

    scripts/corpus.py FOLDER

FOLDER holds index.json and the texts that it names (tests/scripts/test_corpus.py makes a small one). Prints one line
per kind of text, the cause of each refusal, and whatever is wrong; exits with 1 if anything is.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ncclprobe.errors import ParseError
from ncclprobe.facts import ibstat, nvlink, topo_matrix

Pairs = dict[str, tuple[object, object]]
"""What was read and what is expected, by the name of what they are."""


def main() -> int:
    """Print the table and what is wrong; 1 if anything is."""
    folder = _folder()
    entries = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    counts: Counter[tuple[str, str]] = Counter()
    remarks = []
    for entry in (each for each in entries if each["kind"] not in UNREAD):
        outcome, remark = judge(entry, (folder / entry["file"]).read_bytes().decode(errors="replace"))
        counts[entry["kind"], outcome] += 1
        remarks += [f"{outcome}: {entry['file']}: {remark}"] if remark else []
    print("\n".join(_table(counts)))
    print("\n".join(["", *sorted(remarks)]))
    return 1 if any(outcome == "wrong" for _, outcome in counts) else 0


def _folder() -> Path:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder: Path = parser.parse_args().folder
    if not (folder / "index.json").exists():
        parser.error(f"{folder}: no index.json there")
    return folder


def _table(counts: Mapping[tuple[str, str], int]) -> list[str]:
    outcomes = ("exact", "refused", "wrong")
    line = "{:<14}{:>15}{:>17}{:>7}".format
    kinds = sorted({kind for kind, _ in counts})
    rows = [line(kind, *(counts.get((kind, outcome), 0) for outcome in outcomes)) for kind in kinds]
    sums = [sum(count for (_, one), count in counts.items() if one == outcome) for outcome in outcomes]
    return [line("kind", "parsed exactly", "refused rightly", "wrong"), *rows, line("all", *sums)]


def judge(entry: Mapping[str, Any], text: str) -> tuple[str, str]:
    """exact, refused or wrong; and the cause of the refusal, or what is wrong."""
    try:
        pairs = READERS.get(entry["kind"], read_matrix)(entry, text)
    except ParseError as refusal:
        return "refused" if entry["expect_error"] else "wrong", str(refusal)
    if entry["expect_error"]:
        return "wrong", "accepted, though it must be refused"
    different = [f"{what}: read {got!r}, expected {want!r}" for what, (got, want) in pairs.items() if got != want]
    return ("wrong", "; ".join(different)) if different else ("exact", "")


def read_matrix(entry: Mapping[str, Any], text: str) -> Pairs:
    """The one matrix of the text, cell by cell."""
    found = topo_matrix.parse(text)
    matrix, want = found[0], entry["expected"]
    if want is None:
        return {"matrix": (matrix, None)}
    unknown = [None] * len(matrix.gpus)

    def links(rows: tuple[str, ...], columns: tuple[str, ...]) -> list[list[str | None]]:
        return [[matrix.links.get(row, {}).get(column) for column in columns] for row in rows]

    pairs: Pairs = {
        "matrices": (len(found), 1),
        "kind": (matrix.kind, entry["kind"]),
        "GPUs": (matrix.gpus, tuple(f"GPU{n}" for n in range(want["gpu_count"]))),
        "NICs": (matrix.nics, tuple(want["nic_names"])),
        "GPU to GPU": (links(matrix.gpus, matrix.gpus), want["links"]["gpu_gpu"]),
        "GPU to NIC": (links(matrix.gpus, matrix.nics), want["links"]["gpu_nic"]),
        "complete": (_complete(matrix, entry), entry["complete"]),
    }
    for column in ("cpu_affinity", "numa_affinity", "gpu_numa_id"):
        pairs[column] = list(getattr(matrix, column)), want[column] or unknown
    if "nic_nic" in want["links"]:
        pairs["NIC to NIC"] = links(matrix.nics, matrix.nics), want["links"]["nic_nic"]
    else:
        pairs["rows of NICs"] = [nic for nic in matrix.nics if nic in matrix.links], []
    return pairs


def _complete(matrix: topo_matrix.Matrix, entry: Mapping[str, Any]) -> bool:
    """Whether nothing is missing. Of a text that the index calls complete only the rows of GPUs count: whether those of
    NICs and the legends are whole it says among its quirks.
    """
    rest = ("rows NIC", "row NIC", "rows mlx", "row mlx", "the legend", "the NIC Legend")
    missing = [what for what in matrix.incomplete if not (entry["complete"] and what.startswith(rest))]
    return not missing


def read_nvlink(entry: Mapping[str, Any], text: str) -> Pairs:
    """Every GPU with its links' speeds and what was printed in place of them."""
    gpus = nvlink.parse(text).gpus
    active = {str(index): sum(speed is not None for speed in gpu.links.values()) for index, gpu in gpus.items()}
    pairs: Pairs = {"active": (active, entry["expected"]["active"])}
    pairs["indices"] = list(gpus), [want["index"] for want in entry["expected"]["gpus"]]
    for want in entry["expected"]["gpus"]:
        got = gpus[want["index"]]
        speeds = {
            int(link): None if "inactive" in speed else float(speed.split()[0]) for link, speed in want["links"].items()
        }
        pairs[f"GPU {want['index']}"] = (
            (got.name, got.uuid, got.links, got.complaint or None),
            (want["name"], want["uuid"], speeds, want["message"]),
        )
    return pairs


def read_ibstat(entry: Mapping[str, Any], text: str) -> Pairs:
    """Every device and port, by the fields that the index has of it."""
    seen = ibstat.parse(text)
    wanted = entry["expected"]["cas"]
    pairs: Pairs = {"devices": ([adapter.name for adapter in seen.adapters], [want["ca"] for want in wanted])}
    for got, want in zip(seen.adapters, wanted, strict=False):
        about = {"ca_type": got.type, "firmware_version": got.firmware, "number_of_ports": str(len(got.ports))}
        pairs[got.name] = (
            {key: about[key] for key in about if key in want},
            {key: want[key] for key in about if key in want},
        )
        pairs[f"{got.name} ports"] = [_port(port) for port in got.ports], [_wanted(port) for port in want["ports"]]
    pairs["complete"] = not seen.incomplete, entry["complete"]
    return pairs


def _port(port: ibstat.IbstatPort) -> tuple[object, ...]:
    return tuple(getattr(port, name) for name in ibstat.IbstatPort.__struct_fields__)


def _wanted(port: Mapping[str, Any]) -> tuple[object, ...]:
    """A port of the index in the shape of ours: ibstatus writes "4: ACTIVE", "200 Gb/sec (4X HDR)" and 0x33bf."""
    physical = port.get("physical_state", port.get("phys_state"))
    return (
        port["port"],
        port["state"].rpartition(": ")[2],
        physical.rpartition(": ")[2],
        float(port["rate"].split()[0]),
        int(port["base_lid"], 0),
        int(port["sm_lid"], 0),
        port.get("link_layer"),
    )


READERS: dict[str, Callable[[Mapping[str, Any], str], Pairs]] = {
    "nvlink-status": read_nvlink,
    "ibstat": read_ibstat,
}
"""How to read each kind of text; all others hold matrices, or what must not be taken for one."""
UNREAD = {"ibv_devinfo", "numactl", "lscpu"}
"""Kinds that nothing here reads: /sys says the same, and whole."""


if __name__ == "__main__":
    sys.exit(main())
