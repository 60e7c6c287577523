"""Networks of several nodes, in which the installed torch makes gloo groups, one process per rank.

Started by `scripts/oracle_gloo.py` as root: for each world, a line of JSON on standard input, it writes one on standard
output. Each node of a world is a network namespace held by a process; what is done there is done by forks of this
process that enter it, and each rank of a case is one that takes a host name and an /etc/hosts of its own.
"""

import contextlib
import datetime
import itertools
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import torch
import torch.distributed as dist
from oracle_server import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    configured,
    ip,
    libc,
    own_etc,
    own_network,
    private_mounts,
    succeed,
)

from ncclprobe.facts.interfaces import interfaces
from ncclprobe.facts.names import resolve_own
from ncclprobe.host.live import LiveHost
from ncclprobe.model.errors import HostError

TIMEOUT = datetime.timedelta(seconds=8)
CASE_DEADLINE_S = 40.0
_CLONE_NEWUTS = 0x4000000
_PR_SET_PDEATHSIG = 1
_INODE = re.compile(r"socket:\[(\d{1,12})\]")

_PORTS = itertools.count()


def main() -> None:
    """Answer each line with {interfaces, answers}."""
    succeed(libc.unshare(CLONE_NEWNET))
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line))), flush=True)


def play(world: dict[str, Any]) -> dict[str, Any]:
    """Make the nodes, ask them for their interfaces, and run every case."""
    nodes = [Node() for _ in world["nodes"]]
    try:
        ip(bridges(world))
        for node, described in zip(nodes, world["nodes"], strict=True):
            ip(wires(node.pid, described["links"]))
            node.inside(partial(built, described))
        seen = [node.inside(_seen) for node in nodes]
        return {"interfaces": seen, "answers": [group(nodes, case["ranks"]) for case in world["cases"]]}
    finally:
        for node in nodes:
            node.close()
        ip(["link del br0", "link del br1", "link del br2"], force=True)


def bridges(world: dict[str, Any]) -> list[str]:
    """Three switches; a node's link names the one it is plugged into."""
    return [line for k in range(3) for line in (f"link add br{k} type bridge", f"link set br{k} addrgenmode none up")]


def wires(pid: int, links: list[dict[str, Any]]) -> list[str]:
    """Return the lines that plug the links of the node of process `pid` into their switches."""
    lines = []
    for link in links:
        port = f"w{next(_PORTS)}"  # never again: a namespace takes its time to end
        lines += [f"link add {port} type veth peer name {link['name']} netns {pid}"]
        lines += [f"link set {port} addrgenmode none"]
        lines += [f"link set {port} master br{link['switch']}"] if link["switch"] is not None else []
        lines += [f"link set {port} up"] if link["state"] != "nocarrier" else []
    return lines


class Node:
    """A process that holds a network and a mount namespace of its own."""

    def __init__(self) -> None:
        waiting, ready = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            own_network()
            os.write(ready, b"up")
            while True:
                signal.pause()
        os.close(ready)
        os.read(waiting, 2)
        os.close(waiting)

    def inside(self, what: Callable[[], Any]) -> Any:
        """Return what a function gives, as JSON, in a fork that has entered the node."""
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                enter(self.pid)
                with os.fdopen(writing, "w") as stream:
                    json.dump(what(), stream)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as stream:
            text = stream.read()
        os.waitpid(pid, 0)
        return json.loads(text)

    def close(self) -> None:
        """End it, and its namespaces."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def built(described: dict[str, Any]) -> None:
    """Give the links of this node their states and addresses."""
    lo = ["link set lo up"] if described["lo"] else []
    ip([*lo, *(line for link in described["links"] for line in configured(link))])


def enter(node: int) -> None:
    """Enter the namespaces of a process."""
    for name, flag in (("net", CLONE_NEWNET), ("mnt", CLONE_NEWNS)):
        with Path(f"/proc/{node}/ns/{name}").open() as namespace:
            succeed(libc.setns(namespace.fileno(), flag))


def _seen() -> Any:
    """Return the fact of this namespace's interfaces; a busy machine may need more than one try."""
    for last in (False, False, False, False, True):
        host = LiveHost((), lambda _name: False)
        try:
            return msgspec.to_builtins(interfaces.run(host), order="sorted")
        except HostError:
            if last:
                raise
        finally:
            host.close()


def group(nodes: list[Node], ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each rank of one group says: {resolved, listens | refused, joined | lost}. One rank is on each node.

    Once a rank has lost the group, the others are ended: they would wait for their timeout.
    """
    folder = tempfile.mkdtemp(prefix="oracle-gloo-")
    pipes, pids = [], []
    for number, (node, rank) in enumerate(zip(nodes, ranks, strict=True)):
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(reading)
            _rank(node.pid, number, len(ranks), rank, folder, writing)
        os.close(writing)
        pipes.append(reading)
        pids.append(pid)
    said = _gather(pipes, pids)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return said


def _gather(pipes: list[int], pids: list[int]) -> list[dict[str, Any]]:
    """Read until all have ended, or one has lost the group and the others have said what they listen on."""
    texts = dict.fromkeys(pipes, b"")
    ends, deadline = set(pipes), time.monotonic() + CASE_DEADLINE_S
    while ends and time.monotonic() < deadline:
        ready, _, _ = select.select(list(ends), [], [], max(0.0, deadline - time.monotonic()))
        for pipe in ready:
            if chunk := os.read(pipe, 65536):
                texts[pipe] += chunk
            else:
                ends.discard(pipe)
        broken = any(b'"lost"' in text or b'"refused"' in text for text in texts.values())
        if broken and all(b'"listens"' in text or b'"refused"' in text for text in texts.values()):
            break
    for pipe in pipes:
        os.close(pipe)
    return [_merged(text) for text in texts.values()]


def _merged(text: bytes) -> dict[str, Any]:
    """Return the whole lines of one rank as one object."""
    found: dict[str, Any] = {}
    for line in text.decode().split("\n")[:-1]:
        found |= json.loads(line)
    return found


def _rank(node: int, number: int, count: int, rank: dict[str, Any], folder: str, writing: int) -> None:
    """In the fork of a rank: enter its node, say what gloo listens on, then join the group of all."""
    signal.alarm(int(CASE_DEADLINE_S) + 5)
    try:
        _enter(node, rank)
        host = LiveHost((), lambda _name: False)
        say(writing, {"resolved": msgspec.to_builtins(resolve_own(host, socket.gethostname()))})
        host.close()
        say(writing, _alone())
        say(writing, _together(number, count, folder))
    finally:
        os._exit(0)


def say(writing: int, what: dict[str, Any]) -> None:
    """Write one line."""
    os.write(writing, (json.dumps(what) + "\n").encode())


def _enter(node: int, rank: dict[str, Any]) -> None:
    enter(node)
    succeed(libc.unshare(CLONE_NEWNS | _CLONE_NEWUTS))
    private_mounts()
    own_etc(rank["hosts"])
    Path("/etc/host.conf").write_text("multi on\n")
    socket.sethostname(rank["hostname"])
    for name in ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT", "TORCH_GLOO_LAZY_INIT"):
        os.environ.pop(name, None)
    os.environ.update(rank["env"])
    quiet = os.open("/dev/null", os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("ignore")


def _alone() -> dict[str, Any]:
    """Return what a group of one listens on, in the order of its devices, or why torch refuses."""
    before = _descriptors()
    try:
        group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, TIMEOUT)
    except RuntimeError as error:
        return {"refused": str(error).split("\n")[0][:300]}
    new, listening = _descriptors(), _listening()
    inodes = [new[number] for number in sorted(new.keys() - before.keys())]
    del group
    return {"listens": [listening[inode] for inode in inodes if inode in listening]}


def _descriptors() -> dict[int, str]:
    """Return the inode of each socket of this process by its descriptor."""
    found = {}
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if match := _INODE.fullmatch(str(file.readlink())):
                found[int(file.name)] = match[1]
    return found


def _listening() -> dict[str, str]:
    """Return the address of each listening TCP socket of this network by its inode (proc(5), /proc/net/tcp)."""
    found = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/thread-self/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A":
                    raw = bytes.fromhex(words[1].split(":")[0])
                    plain = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
                    found[words[9]] = socket.inet_ntop(family, plain)
    return found


def _together(number: int, count: int, folder: str) -> dict[str, Any]:
    """Return whether the group of all comes up and adds."""
    store = dist.FileStore(f"{folder}/store", count)
    try:
        dist.init_process_group("gloo", store=store, rank=number, world_size=count, timeout=TIMEOUT)
        total = torch.ones(1)
        dist.all_reduce(total)
    except (RuntimeError, OSError) as error:
        return {"lost": str(error).split("\n")[0][:300]}
    return {"joined": total.item() == count}


if __name__ == "__main__":
    main()
