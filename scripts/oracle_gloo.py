#!/usr/bin/env python3
"""Does torch's gloo listen, and connect, where we predict? Asks the installed torch, and compares.

    sudo .venv/bin/python scripts/oracle_gloo.py [--worlds N] [--cases N] [--first N] [--seconds N]

A world is one to four nodes with interfaces and switches drawn at random; a case gives each node a host name, an
/etc/hosts, GLOO_SOCKET_IFNAME, and makes a group of one rank a node. Compared are the addresses that each rank listens
on, or that torch refuses, and whether the group comes up. --vectors keeps cases for the tests.
Needs root and iproute2; every network is a namespace that ends with its process. Exit status 1: a disagreement.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import msgspec
from oracle import impossible
from oracle_gloo_cases import world

from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.gloo import Device, Node, Refused, calls, devices, partings

SERVER = ROOT / "scripts" / "oracle_gloo_server.py"
VECTORS = ROOT / "tests" / "data" / "gloo" / "groups.jsonl"
EXAMPLES = 10
_KEPT = 8


def main() -> int:
    """Parse the command line, ask, compare, print."""
    args = _arguments()
    if problem := impossible():
        print(f"oracle_gloo: {problem}", file=sys.stderr)
        return 2
    numbers = range(args.first, args.first + args.worlds)
    worlds = [world(random.Random(number), args.cases) for number in numbers]
    started, rows = time.monotonic(), []
    with ThreadPoolExecutor(args.workers) as pool:
        parts = [worlds[place :: args.workers] for place in range(args.workers)]
        for asked, answered in zip(parts, pool.map(ask, parts, [started + args.seconds] * args.workers), strict=True):
            for one, answer in zip(asked, answered, strict=False):
                rows += [
                    judge(answer["interfaces"], *pair) for pair in zip(one["cases"], answer["answers"], strict=True)
                ]
    if args.vectors:
        keep(rows)
    differences = [f"{difference} -- {json.dumps(row)}" for row in rows for difference in row["differences"]]
    print(f"{len(rows)} groups, {len(differences)} disagreements", *differences[:EXAMPLES], sep="\n")
    return int(bool(differences))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--worlds", type=int, default=50, help="networks (%(default)s)")
    parser.add_argument("--cases", type=int, default=20, help="groups in each (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first network (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="networks at a time (%(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no network after (%(default)s)")
    parser.add_argument("--vectors", action="store_true", help="keep these cases for the tests")
    return parser.parse_args()


def ask(worlds: Sequence[dict[str, Any]], until: float) -> list[dict[str, Any]]:
    """Return what one server says of these worlds, of as many as there is time for. Raises RuntimeError if it fails."""
    found: list[dict[str, Any]] = []
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, SERVER],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        for one in worlds:
            if time.monotonic() > until:
                break
            with contextlib.suppress(BrokenPipeError):
                server.stdin.write(json.dumps(one) + "\n")
                server.stdin.flush()
            answer = server.stdout.readline()
            if not answer:
                raise RuntimeError(f"server: {server.stderr.read().strip()[-500:]}")
            found.append(json.loads(answer))
    return found


def judge(seen: list[Any], case: dict[str, Any], said: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one case with what was predicted and what torch did, and the first difference."""
    nodes = {}
    for number, (facts, rank, one) in enumerate(zip(seen, case["ranks"], said, strict=True)):
        found = msgspec.convert(facts, Interfaces)
        ifname = rank["env"].get("GLOO_SOCKET_IFNAME", "")
        resolved = one.get("resolved", {}).get("addresses", ())
        nodes[f"n{number}"] = Node(found, devices(found, ifname, rank["hostname"], resolved))
    joined = all(one.get("joined") for one in said)
    expected = outcome(nodes, case)
    differences = [*_devices_differ(nodes, said), *_groups_differ(expected, joined)]
    return {"interfaces": seen, "case": case, "said": said, "expected": expected, "differences": differences}


def outcome(nodes: dict[str, Node], case: dict[str, Any]) -> str:
    """Return what is predicted: ``up``, ``refused``, ``parted``, ``no way`` (the network), or ``unknown``."""
    if any(isinstance(each, Refused) for node in nodes.values() for each in node.devices):
        return "refused"
    if list(partings(nodes)):
        return "parted"
    if any(isinstance(each, Absent) for node in nodes.values() for each in node.devices):
        return "unknown"
    pairs = [(one, other) for one in nodes.values() for other in nodes.values() if one is not other]
    ways = [way(one, other) for one, other in pairs]
    return "no way" if "no" in ways else ("unknown" if "unknown" in ways else "up")


def way(one: Node, other: Node) -> str:
    """Return whether `one`, where it calls, has a running interface in the network of what `other` listens on."""
    for mine, theirs in zip(one.devices, other.devices, strict=True):
        assert isinstance(mine, Device)
        assert isinstance(theirs, Device)
        if calls(mine, theirs):
            if "%" in theirs.address:
                return "unknown"
            found = [reaches(one.interfaces, theirs, running) for running in (True, False)]
            if not found[0]:
                return "unknown" if found[1] else "no"
            if not reaches(other.interfaces, theirs, True):
                return "unknown"
    return "yes"


def reaches(interfaces: Interfaces, target: Device, running: bool) -> bool:
    """Return whether an interface here, with a carrier or just up, has an address in the network of `target`."""
    for each in interfaces.addresses:
        interface = interfaces.by_name[each.name]
        plain, mask = each.address.partition("%")[0], each.netmask
        length = bin(int(ip_address(mask))).count("1")
        usable = "up" in interface.flags and (each.running or not running)
        if (
            usable
            and "%" not in each.address
            and not interface.loopback
            and (ip_address(target.address) in ip_interface(f"{plain}/{length}").network)
        ):
            return True
    return False


def _devices_differ(nodes: dict[str, Node], said: list[dict[str, Any]]) -> list[str]:
    found = []
    for (name, node), one in zip(nodes.items(), said, strict=True):
        if any(isinstance(each, Absent) for each in node.devices):
            continue
        refused = next((each for each in node.devices if isinstance(each, Refused)), None)
        ours = "refused" if refused else [d.address.partition("%")[0] for d in node.devices if isinstance(d, Device)]
        theirs = "refused" if "refused" in one else one.get("listens")
        if ours != theirs:
            found.append(
                f"{name}: predicted {ours} ({refused and refused.why}), torch {theirs} {one.get('refused', '')}"
            )
    return found


def _groups_differ(expected: str, joined: bool) -> list[str]:
    if expected == "unknown" or joined == (expected == "up"):
        return []
    return [f"the group {'comes' if joined else 'does not come'} up, predicted: {expected}"]


def keep(rows: Sequence[dict[str, Any]]) -> None:
    """Write the cases that the tests replay: of each outcome as many."""
    kept: list[dict[str, Any]] = []
    for kind in ("up", "refused", "parted", "no way", "unknown"):
        kept += [row for row in rows if row["expected"] == kind][:_KEPT]
    VECTORS.parent.mkdir(parents=True, exist_ok=True)
    lines = [{k: row[k] for k in ("interfaces", "case", "said", "expected")} for row in kept]
    VECTORS.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
