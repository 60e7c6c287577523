"""``--hosts A,B``: the hosts that a command runs on. :mod:`ncclprobe.commands.over_ssh` starts it there."""

import argparse
import os
import re
import sys
from pathlib import Path

from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.hostlist import expand
from ncclprobe.model.values import Struct

_NAME = r"(?:[\w][\w.+-]{0,63}@)?[\w:][\w.:%-]{0,252}"
STARTED = "NCCLPROBE_HOST"
"""Set on the hosts: --hosts in ncclprobe.toml is meant only for the process that called them."""


class Hosts(Struct, frozen=True):
    """Where a command runs: on these hosts, with this Python; without hosts: here."""

    names: tuple[str, ...] = ()
    python: str = ""


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name hosts."""
    add = parser.add_argument_group(
        "many hosts", "Start ncclprobe on hosts over ssh, which must not prompt, and write one report."
    ).add_argument
    add("--hosts", metavar="HOSTS", help="Run on these hosts: a,b or n[1-8]; the first is node 0.")
    add(
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="Run on the hosts in FILE: one per line, as for mpirun, or n[1-8].",
    )
    add("--remote-python", metavar="PATH",
        help="Use the Python at this path on the hosts (default: this Python's path).")  # fmt: skip


def named(given: argparse.Namespace) -> Hosts:
    """Return the hosts that the command line names. Raises UsageError."""
    if STARTED in os.environ or not (given.hosts or given.hostfile):
        if given.remote_python and STARTED not in os.environ:
            raise UsageError("--remote-python is for --hosts or --hostfile, and neither is given")
        return Hosts()
    if given.fleet:
        raise UsageError("--fleet and --hosts cannot be used together: give the --json report to `ncclprobe fleet add`")
    if given.hosts and given.hostfile:
        raise UsageError("--hosts and --hostfile cannot be used together")
    try:
        found = expand(given.hosts) if given.hosts else _hosts_in_file(given.hostfile)
    except ValueError as error:
        raise UsageError(f"--{'hosts' if given.hosts else 'hostfile'}: {error}") from None
    for name in found:
        if not re.fullmatch(_NAME, name):
            raise UsageError(f"--hosts: {ascii(name)[:80]} is not the name or address of a host, such as n1 or me@n1")
    if not found or len(found) > bounds.SSH_HOSTS:
        raise UsageError(f"--hosts: {len(found)} hosts; name 1 to {bounds.SSH_HOSTS}")
    if len({*found}) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise UsageError(f"--hosts: {twice} is named twice")
    return Hosts(tuple(found), given.remote_python or sys.executable)


def _hosts_in_file(path: Path) -> list[str]:
    """Return the hosts in a file: the first word of each line, without slots. Raises ValueError, UsageError."""
    lines = (line.partition("#")[0].split() for line in files.read(path, limit=bounds.EXPECT_BYTES).splitlines())
    words = (words[0] for words in lines if words)
    return [name for word in words for name in expand(re.sub(r"(?<=[^:]):[0-9]{1,4}$", "", word))]
