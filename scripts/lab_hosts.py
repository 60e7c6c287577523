#!/usr/bin/env python3
"""A cluster on this machine, by hand: hosts n0, n1, … in network namespaces. Needs root, iproute2 and nftables.

scripts/lab up 4 --nics 2           keeps four hosts until Ctrl-C, or until `scripts/lab down`
scripts/lab run n1 -- ip address    runs a command on one of them; `ctl` is the switches' side
scripts/lab clean                   removes what killed runs left
scripts/lab matrix --select '*MASTER*'      plays rows of the fault matrix
"""

import argparse
import fnmatch
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

import environment
from child import fail, run_script

DOWN_S = 10.0


def up(options: argparse.Namespace) -> int:
    """Keep a lab until we are told to stop."""
    from tests.lab import Lab

    with Lab(hosts=options.hosts, nics=options.nics, ipv6=True) as lab:
        for host in lab.hosts:
            print(host.name, *(address for nic in range(lab.nics) for address in host.addresses(nic)))
        print("up; Ctrl-C or `scripts/lab down` ends it", flush=True)
        while True:
            signal.pause()


def down(options: argparse.Namespace) -> int:
    """End all labs of `up`, and wait until they are gone."""
    from tests.lab import hosts

    held = {folder: pid for folder in hosts.found() if (pid := hosts.owner(folder)) is not None}
    for folder, pid in held.items():
        # Only a `scripts/lab up`, not a test that has a lab of its own.
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if any(Path(os.fsdecode(word)).name == Path(__file__).name for word in words[:2]) and b"up" in words:
            os.kill(pid, signal.SIGTERM)
            end_s = time.monotonic() + DOWN_S
            while folder.exists() and time.monotonic() < end_s:
                time.sleep(0.02)
    return 0


def run(options: argparse.Namespace) -> int:
    """Become a command on a host of the newest lab."""
    from tests.lab import hosts

    labs = [folder for folder in hosts.found() if hosts.owner(folder) is not None]
    if not labs:
        fail("no lab is up: scripts/lab up 4")
    command = options.command[options.command[:1] == ["--"] :] or [os.environ.get("SHELL", "sh")]
    hosts.become(labs[-1], options.host, command)
    return 0


def clean(options: argparse.Namespace) -> int:
    """Remove what killed runs left."""
    from tests.lab import hosts

    for folder in hosts.clean():
        print(f"removed {folder}")
    return 0


def matrix(options: argparse.Namespace) -> int:
    """Play rows of the fault matrix; 1 if one is not as it should be."""
    from tests.lab.matrix import ROWS, play

    chosen = [row for row in ROWS if fnmatch.fnmatchcase(row.name, options.select)]
    odd = 0
    for row in chosen:
        told = play(row)
        odd += bool(told)
        print("ODD " if told else "ok  ", row.name, told, flush=True)
    return 0 if chosen and not odd else 1


def parse(argv: list[str]) -> tuple[Callable[[argparse.Namespace], int], argparse.Namespace]:
    """The sub-command and its options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="up | down | run | clean | matrix")
    verb = verbs.add_parser("up", help="keep hosts until Ctrl-C")
    verb.add_argument("hosts", type=int)
    verb.add_argument("--nics", type=int, default=1)
    verb.set_defaults(action=up)
    verb = verbs.add_parser("run", help="run a command on a host of the newest lab")
    verb.add_argument("host")
    verb.add_argument("command", nargs=argparse.REMAINDER)
    verb.set_defaults(action=run)
    verbs.add_parser("down", help="end the labs of `up`").set_defaults(action=down)
    verbs.add_parser("clean", help="remove what killed runs left").set_defaults(action=clean)
    verb = verbs.add_parser("matrix", help="play the fault matrix")
    verb.add_argument("--select", default="*", metavar="GLOB", help="rows by name")
    verb.set_defaults(action=matrix)
    options = parser.parse_args(argv)
    return options.action, options


def main() -> int:
    """Run in `.venv`, as all scripts do."""
    if Path(sys.prefix) != environment.VENV:
        python = environment.make("test")
        os.execv(python, [python, __file__, *sys.argv[1:]])
    from tests.lab import LabError

    action, options = parse(sys.argv[1:])
    try:
        return action(options)
    except LabError as error:
        fail(str(error))


if __name__ == "__main__":
    run_script(main)
