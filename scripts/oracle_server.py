"""One namespace with one libnccl: builds the interfaces it is told, then asks NCCL once per case.

Started by `scripts/oracle.py` as root, with a JSON request on standard input; the JSON answer goes to standard output.
The network and mount namespaces are this process's own and vanish with it. /etc becomes an empty tmpfs here, so that
neither this machine's hosts nor its configuration files take part.

NCCL reads its variables once per process, so every case is a fork of this one, which has loaded the library already.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from ncclprobe.model.values import asdict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ncclprobe.facts.interfaces import interfaces
from ncclprobe.host.live import LiveHost

HOME = "/etc/home"
OTHER_HOME = "/etc/other"
HOSTS = "127.0.0.1 localhost\n10.1.0.77 node1\nfd00:2::77 node2\n"
CASE_DEADLINE_S = 20
COMMAND_DEADLINE_S = 30
_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Answer the one request: {library, links, lo, cases} with {addresses, answers}."""
    request = json.load(sys.stdin)
    isolate()
    build(request["links"], request["lo"])
    host = LiveHost((), lambda _name: False)
    addresses = [asdict(address) for address in interfaces.run(host).addresses]
    host.close()
    library = ctypes.CDLL(request["library"])
    json.dump({"addresses": addresses, "answers": [ask(library, **case) for case in request["cases"]]}, sys.stdout)


def isolate() -> None:
    """Take a network of our own, its sysfs, and an /etc of our own. Raises OSError where this is not allowed."""
    _succeed(libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET))
    _succeed(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _succeed(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))
    _succeed(libc.mount(b"tmpfs", b"/etc", b"tmpfs", 0, None))
    Path(HOME).mkdir()
    Path(OTHER_HOME).mkdir()
    Path("/etc/hosts").write_text(HOSTS)
    Path("/etc/nsswitch.conf").write_text("passwd: files\nhosts: files\n")
    Path("/etc/passwd").write_text(f"root:x:0:0:root:{HOME}:/bin/sh\n")


def _succeed(result: int) -> None:
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
        lines += [f"link set {name} addrgenmode none"]
        lines += [f"link set {name} up"] if link["state"] != "down" else []
        lines += [f"link set {peer} up"] if link["state"] == "up" else []
        lines += [f"addr add {a} dev {name}{' nodad' if ':' in a else ''}" for a in link["addresses"]]
    command = ["ip", "-batch", "-"]
    subprocess.run(command, input="\n".join(lines), text=True, check=True, timeout=COMMAND_DEADLINE_S)


def ask(library: ctypes.CDLL, env: dict[str, str], files: dict[str, str]) -> dict[str, Any]:
    """What NCCL says and leaves behind when a fresh process with these variables and files asks it for an id."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(reading)
        signal.alarm(CASE_DEADLINE_S)
        os.write(writing, json.dumps(_call(library, env, files)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    for path in files:
        Path(path).unlink(missing_ok=True)
    return dict(json.loads(text)) if text else {"rc": None, "log": "died or ran out of time", "environ": {}}


def _call(library: ctypes.CDLL, env: dict[str, str], files: dict[str, str]) -> dict[str, Any]:
    """In the fork: the call, with both outputs in a file of its own."""
    for path, content in files.items():
        Path(path).write_bytes(content.encode())
    os.environ.clear()
    os.environ.update(env)
    log = os.memfd_create("log")
    os.dup2(log, 1)
    os.dup2(log, 2)
    rc = library.ncclGetUniqueId(ctypes.create_string_buffer(128))
    libc.fflush(None)
    said = os.pread(log, 1 << 20, 0).decode(errors="surrogateescape")
    return {"rc": rc, "log": re.sub(r"\n(?=\n)", "", said), "environ": environ_of_c()}


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
