"""One libnccl, asked once per case, as far as a GPU is needed and there: JSON in, lines out.

Started by scripts/oracle.py. The request on standard input: {library, driver,
init, isolate, links, lo, cases: [{env, files}]}. The first line of the answer holds NCCL's version and the interfaces
of this network, each further one what came of a case: the result codes of ncclGetUniqueId and, with `init`, of
ncclCommInitRank on each of two ranks; their logs; the environment that rank 0 left behind. With `isolate` the network
and /etc are this process's own, with the links that are asked for, so that neither this machine's hosts nor its
configuration files take part, and vanish with it (root); else they are the machine's, and files are not laid.

NCCL reads its variables once per process, so every rank of every case is a fork of this one, which has loaded the
libraries already and has not touched the GPU.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oracle_nccl import Nccl, NcclError

from ncclprobe.facts.interfaces import interfaces
from ncclprobe.host.live import LiveHost

HOME = "/etc/home"
OTHER_HOME = "/etc/other"
HOSTS = "127.0.0.1 localhost\n10.1.0.77 node1\nfd00:2::77 node2\n"
RANKS = 2
CASE_S = 10
COMMAND_DEADLINE_S = 30
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_ID_BYTES = 128
_MOST_LOG = 1 << 20
_DEAD: dict[str, Any] = {"id": None, "init": None, "log": "died or ran out of time", "environ": {}}

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Answer the request."""
    request = json.load(sys.stdin)
    nccl = Nccl(Path(request["library"]))
    for name in request["driver"]:  # found now, as /etc/ld.so.cache may be hidden later
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    if request["isolate"]:
        isolate()
        build(request["links"], request["lo"])
    host = LiveHost((), lambda _name: False)
    print(nccl.version(), msgspec.json.encode(interfaces.run(host)).decode(), flush=True)
    host.close()
    for case in request["cases"]:
        print(json.dumps(ask(nccl, case["env"], case["files"], RANKS if request["init"] else 0)), flush=True)


def isolate() -> None:
    """Take a network of our own, its sysfs, and an /etc of our own. Raises OSError where this is not allowed."""
    own_network()
    own_etc(HOSTS)
    Path(HOME).mkdir()
    Path(OTHER_HOME).mkdir()
    Path("/etc/passwd").write_text(f"root:x:0:0:root:{HOME}:/bin/sh\n")


def own_network() -> None:
    """Take a network and mounts of our own, with the sysfs of that network."""
    succeed(libc.unshare(CLONE_NEWNS | CLONE_NEWNET))
    private_mounts()
    succeed(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))


def private_mounts() -> None:
    """Let no mount of ours be seen outside."""
    succeed(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))


def own_etc(hosts: str) -> None:
    """Put an empty /etc over the machine's, with `hosts` alone."""
    succeed(libc.mount(b"tmpfs", b"/etc", b"tmpfs", 0, None))
    Path("/etc/hosts").write_text(hosts)
    Path("/etc/nsswitch.conf").write_text("passwd: files\nhosts: files\n")


def succeed(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def build(links: list[dict[str, Any]], lo: bool) -> None:
    """Make the links in their order. A veth's peer has no address, so that getifaddrs() lists none of it."""
    lines = ["link set lo up"] if lo else []
    for number, link in enumerate(links):
        name, peer, below = link["name"], f"zz{number}", f"yy{number}"
        own = name if link["kind"] == "veth" else below
        lines += [f"link add {own} type veth peer name {peer}", f"link set {peer} addrgenmode none"]
        if link["kind"] != "veth":
            lines += [f"link set {below} addrgenmode none", f"link set {below} up"]
        if link["kind"] == "bridge":
            lines += [f"link add {name} type bridge", f"link set {below} master {name}"]
        elif link["kind"] == "macvlan":
            lines += [f"link add link {below} name {name} type macvlan mode private"]
        lines += configured(link)
        lines += [f"link set {peer} up"] if link["state"] == "up" else []
    ip(lines)


def configured(link: dict[str, Any]) -> list[str]:
    """The lines that give a link its state and its addresses."""
    name, up = link["name"], [f"link set {link['name']} up"]
    addresses = [f"addr add {a} dev {name}{' nodad' if ':' in a.split()[0] else ''}" for a in link["addresses"]]
    return [f"link set {name} addrgenmode none", *(up if link["state"] != "down" else []), *addresses]


def ip(lines: list[str]) -> None:
    """Let iproute2 do all of `lines`."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, timeout=COMMAND_DEADLINE_S)


def ask(nccl: Nccl, env: dict[str, str], files: dict[str, str], ranks: int) -> list[dict[str, Any]]:
    """What each rank of one case said and came to; of no ranks: what one process that only asks for an id said."""
    for path, content in files.items():
        Path(path).write_bytes(content.encode())
    pipes = [os.pipe() for _ in range(max(1, ranks))]
    ids = os.pipe()
    pids = []
    for rank, pipe in enumerate(pipes):
        if (pid := os.fork()) == 0:
            signal.alarm(CASE_S)
            _answer(nccl, {**env, "NCCL_HOSTID": f"hour-{rank}"} if rank else env, rank, ranks, ids, pipe[1])
        pids.append(pid)
    for end in (*ids, *(writing for _, writing in pipes)):
        os.close(end)
    answers = []
    for (reading, _), pid in zip(pipes, pids, strict=True):
        with os.fdopen(reading) as stream:
            text = stream.read()
        os.waitpid(pid, 0)
        answers.append(dict(json.loads(text)) if text else _DEAD)
    for path in files:
        Path(path).unlink(missing_ok=True)
    return answers


def _answer(nccl: Nccl, env: dict[str, str], rank: int, ranks: int, ids: tuple[int, int], out: int) -> None:
    """In the fork: make the calls with both outputs in a file of its own, answer, and end."""
    os.environ.clear()
    os.environ.update(env)
    log = os.memfd_create("log")
    os.dup2(log, 1)
    os.dup2(log, 2)
    found = _called(nccl, rank, ranks, ids)
    libc.fflush(None)
    said = os.pread(log, _MOST_LOG, 0).decode(errors="surrogateescape")
    environ = environ_of_c() if rank == 0 else {}
    os.write(out, json.dumps({**found, "log": said, "environ": environ}).encode())
    os._exit(0)


def _called(nccl: Nccl, rank: int, ranks: int, ids: tuple[int, int]) -> dict[str, Any]:
    """The result of each call: 0, NCCL's words, or null where it was not made."""
    found: dict[str, Any] = {"id": None, "init": None}
    try:
        if rank == 0:
            name = nccl.unique_id()
            found["id"] = 0
            os.write(ids[1], name * (ranks - 1))
        else:
            os.close(ids[1])  # so that reading ends where rank 0 got no id
            name = os.read(ids[0], _ID_BYTES)
        if ranks and len(name) == _ID_BYTES:
            nccl.communicator(name, rank, ranks)
            found["init"] = 0
    except NcclError as refusal:
        found["id" if found["id"] is None and rank == 0 else "init"] = str(refusal)
    return found


def environ_of_c() -> dict[str, str]:
    """The environment as C code sees it now, with what NCCL has put there from its files."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
    found: dict[str, str] = {}
    index = 0
    while (entry := entries[index]) is not None:
        name, _, value = entry.decode(errors="surrogateescape").partition("=")
        found[name] = value
        index += 1
    return found


if __name__ == "__main__":
    main()
