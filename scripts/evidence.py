#!/usr/bin/env python3
"""Take contributed runs into the published ones, and say what moves.

    .venv/bin/python scripts/evidence.py add --source ADDRESS FILE…

FILE is what ``ncclprobe expect --judge LOG --contribute FILE`` wrote (docs/reference/files.md), ADDRESS where its
publisher gave it: runs of one ADDRESS are held back together. A file that is no such one, or holds numbers that are
there already, is refused. Run scripts/accuracy.py --errors and --report afterwards.
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import held_out
from published import OPS, PUBLISHED, kept, rows

from ncclprobe.expect.elsewhere import CONTRIBUTION, ContributedRow, Contribution

NETWORKS = {"ib": "IB", "roce": "RoCE", "efa": "EFA", "slingshot": "Slingshot", "opa": "Omni-Path", "tcpx": "TCPX",
            "tcpxo": "TCPXO", "sockets": "TCP"}  # fmt: skip
FABRICS = {"nvswitch": "NVSwitch", "mesh": "NVLink mesh", "cube-mesh": "NVLink", "pairs": "NVLink bridge"}
LARGEST_FILE = 4 << 20
COPIES, DIGITS = 2, 4


def main() -> int:
    """Add each file that can be; 2 where one could not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("add",))
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--source", required=True, metavar="ADDRESS", help="where the publisher gave them")
    parser.add_argument("--folder", type=Path, default=PUBLISHED, help="the published runs")
    options = parser.parse_args()
    before, refused = _cells(options.folder), 0
    for path in options.files:
        try:
            count = add(_read(path), options.source, options.folder)
            print(f"{path}: {count} rows taken")
        except (OSError, ValueError) as error:
            refused += 1
            print(f"{path}: {error}", file=sys.stderr)
    print(*moved(before, _cells(options.folder)), sep="\n")
    return 2 if refused else 0


def _read(path: Path) -> Contribution:
    """The contribution in a file. Raises ValueError."""
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"larger than {LARGEST_FILE} bytes")
    found = msgspec.json.decode(path.read_bytes(), type=Contribution)
    if found.schema != CONTRIBUTION or not found.rows:
        raise ValueError(f"no {CONTRIBUTION} with rows")
    return found


def add(found: Contribution, source: str, folder: Path) -> int:
    """Append the runs and their rows; returns how many. Raises ValueError for numbers that are there already."""
    known = {
        (row.system.gpu, row.op, row.nbytes, row.shape.gpus, _as_nccl_tests(row.busbw_GBps)) for row in rows(folder)
    }
    each = [row for row in found.rows if row.place == found.rows[0].place and row.busbw_GBps > 0]
    copies = [row for row in each if _exact(row) and _told(row, found.system.gpu) in known]
    if len(copies) >= COPIES:
        raise ValueError(
            f"{len(copies)} of its numbers are published already, {copies[0].busbw_GBps:g} GB/s among them"
        )
    with (folder / "runs.csv").open(encoding="utf-8", newline="") as file:
        number = 1 + max((int(run["run"]) for run in csv.DictReader(file)), default=-1)
    groups: dict[tuple[str, int, int], list[ContributedRow]] = defaultdict(list)
    for row in each:
        groups[row.op, row.nodes, row.gpus_per_node].append(row)
    for at, own in enumerate(groups.values(), number):
        _append(folder / "runs.csv", [_run(at, own[0], found, source)])
        lines = [(at, row.nbytes, "", _printed(row.busbw_GBps), f"{row.time_us:.6g}", "", "") for row in own]
        _append(folder / "results.csv", lines)
    return len(each)


def _printed(busbw_GBps: float) -> str:
    return f"{busbw_GBps:.6g}"


def _as_nccl_tests(busbw_GBps: float) -> str:
    """As most publishers have it: what is computed from a time has more digits, and is the same number."""
    return f"{busbw_GBps:.2f}"


def _exact(row: ContributedRow) -> bool:
    """Whether so many digits are no chance."""
    return len(_as_nccl_tests(row.busbw_GBps).replace(".", "").strip("0")) >= DIGITS


def _told(row: ContributedRow, gpu: str) -> tuple[object, ...]:
    return gpu, row.op, row.nbytes, (row.gpus_per_node,) * row.nodes, _as_nccl_tests(row.busbw_GBps)


def _run(number: int, row: ContributedRow, found: Contribution, source: str) -> tuple[object, ...]:
    """A line of runs.csv, worded as scripts/published.py reads it."""
    system, collective = found.system, {op: name for name, op in OPS.items()}.get(row.op, row.op)
    joined = FABRICS.get(system.fabric, "PCIe")
    network = f"; {NETWORKS[system.network]} {system.nics}x{system.nic_gbps:.0f}Gb" if system.network else ""
    words = [*(["no GDR"] if row.nodes > 1 and not system.gdr else []), *(["dual"] if system.sockets > 1 else [])]
    fabric = "; ".join([joined + network, *words])
    about = number, system.name, system.gpu, row.gpus_per_node, row.nodes, collective, row.nccl, found.settings
    return *about, found.healthy, source, "", fabric, "sweep", f"contributed-{number}", ""


def _append(path: Path, lines: Sequence[tuple[object, ...]]) -> None:
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def _cells(folder: Path) -> held_out.Cells:
    return held_out.cells(held_out.samples(kept(folder)))


def moved(before: held_out.Cells, after: held_out.Cells) -> Iterator[str]:
    """What of the errors and marks is another."""
    for key in sorted({**before, **after}):
        old, new = before.get(key), after.get(key)
        if new and (old is None or (old.median, old.ninety, old.mark) != (new.median, new.ninety, new.mark)):
            was = f"{old.median:.3f} / {old.ninety:.3f}, mark {old.mark}" if old else "nothing"
            yield f"{' '.join(map(str, key))}: {was} -> {new.median:.3f} / {new.ninety:.3f}, mark {new.mark}"


if __name__ == "__main__":
    sys.exit(main())
