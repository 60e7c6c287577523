#!/usr/bin/env python3
"""Idle checks in a real Slurm: after how many rounds is one slow NIC found, and what do they cost the jobs of others?

    .venv/bin/python scripts/fleet_lab.py [--nodes N] [--rounds N] [--slow-from N] [--at-once N]

Nodes are network namespaces of this machine with a slurmd each; every card sends MBITS, the sick one 60 % of it from
round --slow-from on. Each round is one start of deploy/slurm_idle, whose jobs run in a partition that jobs of others
preempt; such a job of two nodes is submitted in each round, and how long it waits is printed. Needs root, and what
scripts/lab_packages installs.
"""

import argparse
import contextlib
import shlex
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ncclprobe.fleet import store
from tests.lab import Lab, faults, launchers

MBITS, SHARE = 400.0, 0.6
PREEMPTED = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "Licenses=idle:{at_once}",
    "PartitionName=preempt Nodes=ALL PriorityTier=0 PreemptMode=CANCEL State=UP",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("?")[0])
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--slow-from", type=int, default=14)
    parser.add_argument("--at-once", type=int, default=2, help="pairs at once: this machine has few processors")
    given = parser.parse_args()
    lines = [line.format(at_once=given.at_once) for line in PREEMPTED]
    with Lab(hosts=given.nodes) as lab, launchers.slurm(lab, *lines, cpus=1) as cluster, contextlib.ExitStack() as slow:
        script, db, env = prepared(lab)
        for host in lab.hosts[:-1]:
            slow.enter_context(faults.shaped(host, MBITS))
        sick = lab.hosts[-1]
        healthy = slow.enter_context(contextlib.ExitStack())
        healthy.enter_context(faults.shaped(sick, MBITS))
        for number in range(1, given.rounds + 1):
            if number == given.slow_from:
                healthy.close()
                slow.enter_context(faults.shaped(sick, MBITS * SHARE))
                print(f"round {number}: {sick.name} sends {SHARE:.0%} from now on", flush=True)
            one_round(cluster, script, env, number)
            with store.opened(db, 30.0) as fleet:
                found = {each.name: each for each in fleet.standings() if each.state not in ("ok", "unknown")}
                tests = sum(each.tests for each in fleet.standings())
            print(f"round {number}: {tests} tests of nodes so far", flush=True)
            for each in found.values():
                print(f"round {number}: {each.name} {each.state}: {each.evidence}", flush=True)
            if sick.name in found and found[sick.name].state == "degraded":
                others = sorted(found.keys() - {sick.name})
                print(f"found after {number - given.slow_from + 1} rounds; others told: {others or 'none'}")
                return 0
    print("not found")
    return 1


def prepared(lab: Lab) -> tuple[Path, Path, dict[str, str]]:
    """Write what a site has: the command, and a store that all nodes can write."""
    command, db = lab.folder / "ncclprobe", lab.folder / "fleet.db"
    start = f"exec {shlex.quote(sys.executable)} -m ncclprobe"
    command.write_text(f'#!/bin/sh\nexport PYTHONPATH={ROOT} OMP_NUM_THREADS=1\n{start} "$@"\n')
    command.chmod(0o755)
    script = lab.folder / "slurm_idle"
    text = (ROOT / "ncclprobe" / "deploy" / "slurm_idle").read_text()
    text = text.replace("--exclusive", "--exclusive --licenses=idle:1")
    text = text.replace("/dev/null", f"{lab.folder}/idle-%j.log")
    script.write_text(text)
    script.chmod(0o755)
    env = {"NCCLPROBE": str(command), "NCCLPROBE_FLEET": str(db), "NCCLPROBE_RANKS": "1",
           "NCCLPROBE_OPTIONS": "--backend gloo -e 1M"}  # fmt: skip
    return script, db, env


def one_round(cluster: launchers.Slurm, script: Path, env: dict[str, str], number: int) -> None:
    began = time.monotonic()
    said = cluster.run([str(script)], env, timeout_s=60.0)
    if said.code:
        print(f"round {number}: {said.err.strip()[-300:]}", flush=True)
    time.sleep(5.0)
    asked = time.monotonic()
    cluster.run(["srun", "--partition=p", "--nodes=2", "--exclusive", "true"], timeout_s=120.0)
    waited = time.monotonic() - asked
    while cluster.run(["squeue", "-h", "-p", "preempt"], timeout_s=20.0).out.strip():
        time.sleep(1.0)
    for each in sorted(cluster.lab.folder.glob("idle-*.log")):
        if not (text := each.read_text().strip()).startswith(("PASS", "ok", "4 pairs")):
            print(f"  {each.name}: {text[-200:]}", flush=True)
        each.unlink()
    print(f"round {number}: {time.monotonic() - began:.0f} s; a job of another waited {waited:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
