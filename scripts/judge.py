#!/usr/bin/env python3
"""How well the doctor judges: healthy machines, planted faults, and shapes of machines that people have posted.

    .venv/bin/python scripts/judge.py [FOLDER]

FOLDER is a corpus as scripts/corpus.py reads it; without it nothing is said of one. Exits with 1 if a planted fault is
missed or misnamed, or a healthy machine has a finding above a note. Matrices are judged as `ncclprobe topo` does;
around the ports that ibstat has printed stands a healthy server (tests/zoo/rebuilt.py).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import zoo
from zoo import findings, rebuilt, sick

from ncclprobe.engine.collect import collect
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import coverage as count_verdicts
from ncclprobe.engine.judge import judge
from ncclprobe.engine.matrices import judged
from ncclprobe.facts import ibstat, topo_matrix
from ncclprobe.host import Question
from ncclprobe.host.capture import Replay
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Job, Snapshot

Found = Sequence[tuple[str, Finding]]

SAYS_SO = {  # the case's number: check and subject of the finding that says what its `anomaly` says
    "011": "ib.gdr GPU3, GPU4, GPU5 and GPU6",  # of a GPU that is missing only --expect-gpus can tell
    "067": "ib.gdr GPU2 and GPU3",
    "074": "ib.gdr GPU0 and GPU2",
    "075": "nvl.links GPU2",
    "076": "nvl.links GPU2",
    "077": "ib.gdr GPU0, GPU1 and GPU2",
    "088": "ib.gdr GPU0 and GPU1",
    "090": "ib.gdr GPU0",
    "117": "ib.gdr GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU6 and GPU7",
    "124": "gpu.p2p GPUs",
    "127": "ib.gdr GPU0, GPU1, GPU2 and GPU3",
    "128": "ib.gdr GPU0 and GPU1",
    "135": "ib.gdr GPU4",
    "136": "ib.gdr GPU4",
    "140": "ib.gdr GPU0 and GPU2",
    "148": "nvl.links GPU6",
    "153": "ib.state mlx5_11:1",
    "154": "ib.state mlx5_2:1",
}
WHY_NOT = {
    "a virtual machine or desktop that shows no tree or NUMA node: NCCL works with it": (
        "003", "014", "028", "058", "103", "104", "119", "120", "125", "126", "180", "182", "183"),
    "a view from inside a job's cgroup: sysfs, which the doctor reads, shows the true places": ("068", "094"),
    "a shape of its own, and no fault of it": ("102", "137"),
    "GPUs share NICs in pairs, and NVLink relays lead to them (PXN): no GPU is worse off than half of the others": (
        "056",),
    "the processors of each GPU come from NVML, not from the matrix": ("027", "044", "110", "111"),
    "P2P status of NVLink-bridged pairs, or of PCI, which no check takes from a matrix": ("064", "134"),
    "a text that must be refused, and is": ("099", "184"),
    "a device that goes away under the reader: sysfs lists it or not": ("152",),
}  # fmt: skip


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    alarms, failures = list(_healthy()), list(_planted())
    if folder:
        _corpus(folder)
    return 1 if alarms or failures else 0


def _healthy() -> Iterator[str]:
    """Print machine × findings; the names of synthetic machines with one above a note."""
    line = "{:<20}{:>5}{:>5}{:>5}{:>9}{:>7}  {}".format
    print(line("healthy machine", "fail", "warn", "note", "unknown", "passed", "which"))
    for path in sorted(zoo.CAPTURES.glob("*.jsonl")):
        found, coverage = findings.findings(path), count_verdicts(findings.judged(path))
        counts = [sum(finding.severity is severity for _, finding in found) for severity in reversed(Severity)]
        print(line(path.stem, *counts, coverage["unknown"], coverage["pass"], _names(found)).rstrip())
        if counts[0] + counts[1] and path.stem in zoo.MACHINES:
            yield path.stem


def _planted() -> Iterator[str]:
    """Print fault → outcome; the names of those missed or misnamed."""
    line = "{:<16}{:<54}{:<52}{:<11}{}".format
    print("\n" + line("sick machine", "planted", "to be found", "outcome", "consequences, other than notes"))
    for name, plant in sick.PLANTS.items():
        found = findings.findings(sick.CAPTURES / f"{name}.jsonl")
        said = [findings.short(rule, finding) for rule, finding in found]
        check = plant.finding.split(" ", 2)[1]
        outcome = "found" if plant.finding in said else "misnamed" if check in dict(found) else "missed"
        others = [one for one in said if one != plant.finding and not one.startswith("note ")]
        print(line(name, plant.planted, plant.finding, outcome, ", ".join(others)).rstrip())
        if outcome != "found":
            yield name


def _corpus(folder: Path) -> None:
    entries = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    said: list[str] = []
    unsaid: list[str] = []
    alarms: list[tuple[str, Found]] = []
    healthy = looked_at = 0
    reasons = {number: why for why, numbers in WHY_NOT.items() for number in numbers}
    for entry in entries:
        number, found = Path(entry["file"]).name[:3], _judged(folder, entry)
        loud = [pair for pair in found or () if pair[1].severity is not Severity.NOTE]
        hits = [pair for pair in found or () if f"{pair[0]} {pair[1].subject}" == SAYS_SO.get(number)]
        if not entry.get("anomaly"):
            healthy += 1
            looked_at += found is not None
            alarms += [(entry["file"], loud)] if loud else []
        elif hits:
            said.append(f"  {entry['file']}: {entry['anomaly']}\n      {_line(hits[0])}")
        else:
            unsaid.append(f"  {entry['file']}: {entry['anomaly']}\n      {reasons.get(number, 'not known why')}")
    print(f"\ncorpus, {len(said) + len(unsaid)} texts with an anomaly: a finding says so in {len(said)}")
    print("\n".join(said))
    print(f"no finding says so in {len(unsaid)}")
    print("\n".join(unsaid))
    print(f"corpus, {healthy} texts without: {looked_at} hold what checks look at, {len(alarms)} alarm")
    for name, pairs in alarms:
        print("\n".join(f"  {name}: {_line(pair)}" for pair in pairs))
        print("      not known why")


def _judged(folder: Path, entry: Mapping[str, Any]) -> Found | None:
    """What the checks find in a text, or on a machine around it; None for a text that says nothing to them."""
    if entry["expect_error"]:
        return None
    text = (folder / entry["file"]).read_bytes().decode(errors="replace")
    if entry["kind"] in ("topo-m", "topo-mp", "p2p"):
        verdicts = judged(topo_matrix.parse(text), entry["file"])
    elif (answers := _answers(entry["kind"], text)) is not None:
        facts = collect(Replay(answers), discover("ncclprobe.facts", Collector))
        verdicts = judge([Snapshot("rebuilt", facts)], every_check(MACHINE), Job())
    else:
        return None
    return [(verdict.id, finding) for verdict in verdicts for finding in verdict.findings]


def _answers(kind: str, text: str) -> Mapping[Question, Any] | None:
    if kind == "nvlink-status":
        return {("run", "nvidia-smi", "nvlink", "-s"): text}
    if kind == "ibstat":
        machine, changes = rebuilt.with_ports("rebuilt", ibstat.parse(text).adapters)
        return zoo.answers(machine, *changes)
    return None


def _names(found: Found) -> str:
    return ", ".join(findings.short(rule, finding) for rule, finding in found)


def _line(pair: tuple[str, Finding]) -> str:
    return f"{findings.short(*pair)}: {pair[1].message}"


if __name__ == "__main__":
    sys.exit(main())
