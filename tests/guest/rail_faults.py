"""Plant faults of rails between two guests with soft-RoCE, and write what `ncclprobe rails` said of each.

    python tests/guest/rail_faults.py OUT [CASE …]      boots both; a table on standard output, reports under OUT

Two kernels, joined by three socket networks of QEMU: one to agree over, and a rail on each of two others. What a rail
carries really crosses between the guests (`wire` proves it: with all of RoCE dropped nothing arrives). The emulator
is what is timed, and what limits it: beside other work a node takes longer than the 2 s that a question may take.
Needs: install qemu-system-x86 linux-image-amd64 busybox-static rdma-core ibverbs-providers nftables; pip install
virtme-ng; two minutes for each case.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ncclprobe.model.values import Struct, field

ROOT = Path(__file__).resolve().parents[2]
NETWORKS = ("0a", "0b", "0c")
"""Parts of the cards' addresses: the network to agree over, rail 0, rail 1."""
TOKEN = "0123456789abcdef0123456789"
BOOT_S, HIT_S, CASE_S, STOPPED_S, ALL_S = 400.0, 50.0, 600.0, 180.0, 4000.0
_APART_S = 15.0
"""Between the two starts: two emulated processors that look at once are too slow for the seconds of a question."""
RAILS_S = 360.0  # an emulated processor takes a minute to look at the machine, and a step of a test a share of it


class Case(Struct, frozen=True):
    """A fault of rail 1 of n1: shell lines that plant and remove it there, and what is to be said of it.

    `variables` are set on n1 alone, `before` are words before its command; `hit` sends its command a signal while rails
    are tried. `check`: the id that must be found; empty: nothing must.
    """

    name: str
    check: str = ""
    plant: str = ":"
    remove: str = ":"
    variables: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()
    hit: int = 0


CHAIN = "nft add table inet f; nft add chain inet f c '{ type filter hook input priority 0; }'"
SENT = "nft add chain inet f o '{ type filter hook output priority 0; }'; nft add rule inet f o udp dport 4791 drop"
NO_CHAIN = "nft delete table inet f"
UP_AGAIN = "ip link set $RAIL1 up; ip addr replace $ADDRESS1 dev $RAIL1"
LESS_MEMORY = ("prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock")
ARRIVES = f"{CHAIN}; nft add rule inet f c iifname $RAIL1 udp dport 4791 drop"
UVERBS = "/dev/infiniband/uverbs1"
CASES = (
    Case("healthy"),
    Case("wire", "rail.dead", f"{CHAIN}; nft add rule inet f c udp dport 4791 drop; {SENT}", NO_CHAIN),
    Case("wrong GID index", "rail.dead", variables={"NCCL_IB_GID_INDEX": "5"}),
    Case("link-local GID", "rail.dead", variables={"NCCL_IB_GID_INDEX": "0"}),
    Case("MTU 4096 against 1024", "sync.network", "ip link set $RAIL1 mtu 4200", "ip link set $RAIL1 mtu 1500"),
    Case("port down", "sync.network", "ip link set $RAIL1 down", UP_AGAIN),
    Case("what arrives is dropped", "rail.dead", ARRIVES, NO_CHAIN),
    Case("5 % are lost", "rail.slow", "tc qdisc add dev $RAIL1 root netem loss 5%", "tc qdisc del dev $RAIL1 root"),
    Case("40 ms late", "rail.slow", "tc qdisc add dev $RAIL1 root netem delay 40ms", "tc qdisc del dev $RAIL1 root"),
    Case("no such device", "sync.machine", "rdma link delete rxe1", "rdma link add rxe1 type rxe netdev $RAIL1"),
    Case("locked memory is limited", "rail.unusable", before=LESS_MEMORY),
    Case("uverbs is missing", "ib.perm", f"mv {UVERBS} /dev/gone", f"mv /dev/gone {UVERBS}"),
    Case("killed peer", "sync.nodes", hit=signal.SIGKILL),
    Case("stopped peer", "rail.untried", hit=signal.SIGSTOP),
)


def main(words: Sequence[str]) -> int:
    """Boot both guests and wait for them; or be what runs inside one."""
    if words[0] == "inside":
        number = int(words[1])
        Guest(number, Path(words[2])).play(words[3:])
        return 0
    out = Path(words[0]).resolve()
    out.mkdir(exist_ok=True)
    boot(out, words[1:])
    print(table(out))
    return 0


def boot(out: Path, names: Sequence[str]) -> None:
    """Run both guests to their end."""
    kernel = max(Path("/boot").glob("vmlinuz-*"), key=lambda path: path.name)
    guests = []
    for number in (0, 1):
        inside = [sys.executable, str(Path(__file__).resolve()), "inside", str(number), str(out), *names]
        cards = []
        for place, net in enumerate(NETWORKS):
            side = "listen" if number == 0 else "connect"
            cards += ["-netdev", f"socket,id=n{net},{side}=127.0.0.1:{4710 + place}"]
            cards += ["-device", f"virtio-net-pci,netdev=n{net},mac=52:54:00:00:{net}:0{number}"]
        command = ["vng", "-r", str(kernel), "--force-9p", "--disable-kvm", "--disable-microvm", "--user", "root"]
        command += ["--rwdir", str(out), "--cpus", "2", "--memory", "1G", f"--qemu-opts={shlex.join(cards)}"]
        log = (out / f"guest{number}.log").open("wb")
        guests.append(
            subprocess.Popen(
                [*command, "--", shlex.join(inside)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
        time.sleep(2.0)  # who connects comes after who listens
    late = time.monotonic() + ALL_S
    for guest in guests:
        with contextlib.suppress(subprocess.TimeoutExpired):
            guest.wait(max(1.0, late - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(guest.pid, signal.SIGKILL)


class Guest:
    """One of the two: it plants faults if it is n1, and runs the command either way."""

    def __init__(self, number: int, out: Path) -> None:
        self.number, self.out = number, out
        self.cards = {net: card(net) for net in NETWORKS}
        sh(f"hostname n{number}; ip link set lo up; modprobe rdma_rxe; modprobe ib_uverbs")
        for place, net in enumerate(NETWORKS):
            sh(f"ip addr add {self.address(place)} dev {self.cards[net]}; ip link set {self.cards[net]} up")
        for rail, net in enumerate(NETWORKS[1:]):
            sh(f"rdma link add rxe{rail} type rxe netdev {self.cards[net]}")
        self.peer = meet(number)

    def address(self, place: int) -> str:
        """This guest's address on a network, with the length of its prefix."""
        return f"10.{place}.0.{self.number + 1}/24"

    def play(self, names: Sequence[str]) -> None:
        """Play the cases, both guests in step."""
        for case in CASES:
            if names and case.name not in names:
                continue
            mine = case if self.number == 1 else Case(case.name)
            self.together(f"{case.name}: plant")
            said = [sh(self.with_names(mine.plant))]
            self.together(f"{case.name}: run")
            began = time.monotonic()
            time.sleep(_APART_S * self.number)
            code = self.run(mine)
            took = time.monotonic() - began
            said.append(sh(self.with_names(mine.remove)))
            row = {"case": case.name, "node": self.number, "code": code, "seconds": round(took, 1), "said": said}
            with (self.out / f"rows{self.number}.jsonl").open("a") as rows:
                rows.write(json.dumps(row) + "\n")

    def with_names(self, line: str) -> str:
        """Return a shell line in which the names of this guest's cards stand."""
        return f"RAIL1={self.cards[NETWORKS[2]]} ADDRESS1={self.address(2)}; {line}"

    def run(self, case: Case) -> int | None:
        """Run the command to its end; its exit code."""
        report = self.out / f"{slug(case.name)}.n{self.number}.json"
        words = [sys.executable, "-m", "ncclprobe", "rails", "--nnodes", "2", "--node-rank", str(self.number)]
        words += [
            "--master-addr",
            "10.0.0.1",
            "--master-port",
            "29500",
            "--timeout",
            str(RAILS_S),
            "--no-color",
            "--json",
            str(report),
        ]
        log = (self.out / f"{slug(case.name)}.n{self.number}.txt").open("wb")
        variables = {
            **os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "NCCLPROBE_TOKEN": TOKEN,
            "TMPDIR": "/dev/shm", "NCCL_SOCKET_IFNAME": self.cards[NETWORKS[0]], **case.variables,
        }  # fmt: skip
        run = subprocess.Popen(
            [*case.before, *words], env=variables, stdout=log, stderr=log, cwd="/dev/shm", start_new_session=True
        )
        if case.hit:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(HIT_S)
            os.killpg(run.pid, case.hit)
        try:
            return run.wait(STOPPED_S if case.hit == signal.SIGSTOP else CASE_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()

    def together(self, where: str) -> None:
        """Wait until the other guest is here too."""
        self.peer.sendall(f"{where}\n".encode())
        heard = b""
        while not heard.endswith(b"\n"):
            more = self.peer.recv(1000)
            if not more:
                raise SystemExit(f"the other guest left at {where}")
            heard += more


def card(net: str) -> str:
    """Return the name of the card on a network: the kernel names them by their slots."""
    for path in Path("/sys/class/net").glob("*/address"):
        if path.read_text().startswith(f"52:54:00:00:{net}:"):
            return path.parent.name
    raise SystemExit(f"no card has an address with {net}")


def meet(number: int) -> socket.socket:
    """Connect the two guests over the network to agree over."""
    late = time.monotonic() + BOOT_S
    if number == 0:
        with socket.create_server(("10.0.0.1", 4000)) as server:
            server.settimeout(BOOT_S)
            peer, _ = server.accept()
            peer.settimeout(CASE_S * 2)
            return peer
    while True:
        try:
            peer = socket.create_connection(("10.0.0.1", 4000), 5.0)
        except OSError:
            if time.monotonic() > late:
                raise
            time.sleep(1.0)
        else:
            peer.settimeout(CASE_S * 2)
            return peer


def sh(line: str) -> str:
    """Run a line of shell; what it said, if anything."""
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60.0)
    return (done.stdout + done.stderr).strip()


def slug(name: str) -> str:
    """Return a case's name as a file's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def table(out: Path) -> str:
    """Return what came of all cases, as Markdown."""
    lines = [
        "| planted on rail 1 of n1 | named as | other nodes blamed | seconds | exit codes |",
        "|---|---|---|---|---|",
    ]
    rows = {number: {row["case"]: row for row in _rows(out / f"rows{number}.jsonl")} for number in (0, 1)}
    for case in CASES:
        if case.name not in rows[0]:
            continue
        found = list(_found(out / f"{slug(case.name)}.n0.json"))
        others = sorted({node for _, _, nodes in found if "n1" not in nodes for node in nodes})  # n1 <-> n0 is right
        named = "; ".join(dict.fromkeys(f"`{check}` {subject}" for check, subject, _ in found))
        ends = [rows[number].get(case.name, {}) for number in (0, 1)]
        codes = " ".join(str(end.get("code", "–")) for end in ends)
        right = case.check in {check for check, _, _ in found} if case.check else not found
        verdict = "" if right else " **(another than planted)**"
        took, blamed = ends[0].get("seconds", 0), ", ".join(others) or "0"
        lines.append(f"| {case.name} | {named or 'nothing'}{verdict} | {blamed} | {took:.0f} | {codes} |")
    return "\n".join(lines)


def _rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _found(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    report = json.loads(path.read_text()) if path.exists() else {"checks": []}
    for check in report["checks"]:
        for finding in check["findings"]:
            if finding["severity"] != "note" and not check["id"].startswith("launch."):  # a guest has no name server
                yield check["id"], finding["subject"], finding["nodes"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
