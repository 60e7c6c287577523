"""The fault matrix: a fault, how it is made on host n1, and what the doctor must say of it, in whose report."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from ncclprobe.model.values import Struct

from . import faults
from .hosts import Completed, Host, Lab, LabError, ended
from .launchers import PORT, TOKEN, by_hand, give_gpus

GRACE_S, LATE_S, PATIENCE_S = 8.0, 2.0, 5.0
ALL, WELL, ONE_IS_BAD, IN_PART = (4, 4, 4), (0, 0, 0), (4, 4, 0), (4, 4, None)
N1, BOTH, EVERYBODY = ("n1",), ("n1", "n2"), ("n0", "n1", "n2")
GROUP, MESH = "launch.gloo-group", "launch.mesh"
_INCOMPLETE = ("sync.nodes", "launch.master", "launch.port")
SQUATTER = """
import os, socket, sys, threading
door = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    caller = door.accept()[0]
    caller.sendall(os.urandom(512))
    threading.Thread(target=caller.recv, args=(1 << 16,), daemon=True).start()
"""


class Named(NamedTuple):
    """One finding that must come. `subject` and `says` are parts of it, `by` whose report holds it; blame "": any."""

    id: str
    nodes: tuple[str, ...] = N1
    says: str = ""
    subject: str = ""
    blame: str = ""
    by: str = "n0"
    severity: str = "fail"


class Row(Struct, frozen=True):
    """One fault. `codes`: exit codes of the hosts in order, None for any; `also`: ids that may come as consequences.

    `instead` is as good as `expect`, if it depends on a moment which of them comes. `words` are options of every
    doctor. `kill`: n1's doctor is killed as soon as it has reached n0.
    """

    name: str
    make: Callable[[Lab], object]
    expect: tuple[Named, ...]
    codes: tuple[int | None, ...] = ALL
    instead: tuple[Named, ...] = ()
    also: tuple[str, ...] = ()
    hosts: int = 3
    nics: int = 1
    gpus: bool = False
    words: tuple[str, ...] = ()
    kill: bool = False
    timeout_s: float = 40.0

    @property
    def wait_s(self) -> float:
        """How long nodes wait for each other: long where everybody comes, because it costs nothing then."""
        return PATIENCE_S if any(each.id in _INCOMPLETE for each in self.expect) else 0.6 * self.timeout_s


class Said(NamedTuple):
    """One finding of one report."""

    by: str
    id: str
    severity: str
    subject: str
    words: str
    nodes: tuple[str, ...]
    blame: str


def play(row: Row) -> str:
    """Play one row, and return what is not as it should be; empty where all is well."""
    with Lab(hosts=row.hosts, nics=row.nics) as lab:
        if row.gpus:
            give_gpus(lab)
        for host in lab.hosts:
            host.env |= TOKEN
        row.make(lab)
        # torch here may be built without CUDA, which is no fault
        words = [*(("--backend", "nccl", "--ignore", "env.start") if row.gpus else ()), *row.words]
        words += ["--timeout", f"{row.timeout_s:g}", "--wait", f"{row.wait_s:g}"]
        jobs = by_hand(lab.hosts, *words, env={})
        if row.kill:
            _until_connected(lab["n1"])
            jobs["n1"].kill()
        done = ended(jobs, row.timeout_s + GRACE_S)
        said = [each for host in lab.hosts for each in read(lab.folder / f"{host.name}.json", host.name)]
        return "; ".join(_odd(row, said, done))


def read(path: Path, by: str) -> list[Said]:
    """The findings of a report; nothing where nobody wrote it."""
    found = []
    for verdict in json.loads(path.read_text())["checks"] if path.exists() else ():
        for each in verdict["findings"]:
            nodes = each["nodes"] or ([verdict["node"]] if verdict["node"] else [])
            seen = "; ".join(" ".join(filter(None, (one["source"], one["text"]))) for one in each["evidence"])
            words = f"{each['message']} ({seen})"
            found.append(Said(by, verdict["id"], each["severity"], each["subject"], words, tuple(nodes), each["blame"]))
    return found


def _odd(row: Row, said: Sequence[Said], done: Mapping[str, Completed]) -> list[str]:
    hits = {each: next((one for one in said if _fits(each, one)), None) for each in row.expect}
    if row.instead and None in hits.values():
        hits = {each: next((one for one in said if _fits(each, one)), None) for each in row.instead}
    well = {(hit.id, hit.subject, hit.nodes) for hit in hits.values() if hit}
    odd = [f"expected {each}" for each, hit in hits.items() if hit is None]
    odd += [
        f"false alarm {each}"
        for each in said
        if each.severity in ("warn", "fail")
        if each.id not in row.also and (each.id, each.subject, each.nodes) not in well
    ]
    for (name, each), code in zip(done.items(), row.codes, strict=False):
        if code not in (None, each.code):
            odd.append(f"{name} exits {each.code}, not {code}: {each.err[-300:]}")
        if each.timed_out or each.seconds > row.timeout_s + LATE_S:
            odd.append(f"{name} ran {each.seconds:.1f} s")
    return odd


def _fits(wanted: Named, said: Said) -> bool:
    return (
        (said.id, said.severity, said.by) == (wanted.id, wanted.severity, wanted.by)
        and sorted(said.nodes) == sorted(wanted.nodes)
        and wanted.subject in said.subject
        and wanted.says in said.words
        and wanted.blame in ("", said.blame)
    )


def _until_connected(host: Host) -> None:
    end_s = time.monotonic() + 15.0
    table = Path(f"/proc/{host.pid}/net/tcp")
    # 01: established
    while not any(f":{PORT:04X} 01" in line for line in table.read_text().splitlines()):
        if time.monotonic() > end_s:
            raise LabError(f"{host.name} did not connect")
        time.sleep(0.002)


def _use(lab: Lab, *made: AbstractContextManager[None]) -> None:
    for fault in made:
        lab.stack.enter_context(fault)


def _env(on: Sequence[str] = N1, **variables: str) -> Callable[[Lab], None]:
    def make(lab: Lab) -> None:
        for name in on:
            lab[name].env.update(variables)

    return make


def _own_name(address: str, on: Sequence[str] = N1, name: str = "") -> Callable[[Lab], None]:
    """On these hosts `name`, or their own name, is this address."""

    def make(lab: Lab) -> None:
        for host in on:
            usual = [line for line in lab.names() if line.split()[1] != (name or host)]
            _use(lab, faults.names(lab[host], f"{address} {name or host}", *usual))

    return make


def _new_connections(verdict: str, peer: str = "") -> Callable[[Lab], None]:
    """n1's firewall knows connections: new ones to ephemeral ports meet the verdict, others pass."""

    def make(lab: Lab) -> None:
        whose = f"ip saddr {lab[peer].address()} " if peer else ""
        _use(lab, faults.rules(lab["n1"], [f"{whose}tcp dport 32768-60999 tcp flags & (syn | ack) == syn {verdict}"]))

    return make


def _taken(lab: Lab) -> None:
    lab["n0"].start([sys.executable, "-c", SQUATTER, str(PORT)]).until_says("ready")


def _third_card_closed(lab: Lab) -> None:
    """NCCL has a card, the default route another, and gloo a third one, on which nothing gets to the victim."""
    _env(EVERYBODY, NCCL_SOCKET_IFNAME="=eth1", GLOO_SOCKET_IFNAME="eth2")(lab)
    _use(lab, faults.rules(lab["n1"], ['iifname "eth2" meta l4proto tcp drop']))


def _elsewhere(lab: Lab) -> None:
    _env(EVERYBODY, NCCL_SOCKET_IFNAME="=eth1")(lab)
    _use(lab, faults.addressed(lab["n1"], "10.99.0.9/24", nic=1))


def _dropped_by_size(lab: Lab) -> None:
    """All others' firewalls drop what the victim sends in large packets, as a switch port of a smaller MTU would."""
    lab["n1"].ip("link set eth0 gso_max_segs 1")  # a veth pair passes 64 KiB of a stream as one packet
    drop = f"ip saddr {lab['n1'].address()} meta length > 1400 drop"
    _use(lab, *(faults.rules(lab[name], [drop]) for name in ("n0", "n2")))


def _leaves_by_the_first(lab: Lab) -> None:
    _env(EVERYBODY, NCCL_SOCKET_IFNAME="=eth1")(lab)
    _use(lab, faults.routed_by(lab["n1"], 1, 0))


def _cut_off(outcome: str) -> Named:
    """What n1 says if it does not get through to rank 0."""
    return Named("launch.master", N1, outcome, "n0:29500", by="n1")


MISSING = Named("sync.nodes", ("node 1",), subject="node")
BY_ADDRESS = ("--master-addr", "10.77.0.1")
DEBIAN = "every node's own name is 127.0.1.1"
ROWS = (
    Row("nothing is wrong", lambda lab: None, (), WELL, hosts=2, nics=2, gpus=True, timeout_s=120.0),
    Row("MASTER_ADDR resolves nowhere", lambda lab: None,
        (Named("launch.master", subject="nosuch", blame="job", by="n1"), MISSING), also=("launch.master",), hosts=2,
        words=("--master-addr", "nosuch")),
    Row("MASTER_ADDR is a loopback address on one node", _own_name("127.0.1.1", name="n0"),
        (Named("launch.master", subject="n0", says="127.0.1.1", blame="node", by="n1"), MISSING)),
    Row("MASTER_PORT is filtered for one node alone",
        lambda lab: _use(lab, faults.filtered(lab["n0"], port=PORT, peer=lab["n1"])), (_cut_off("filtered"), MISSING)),
    Row("MASTER_PORT is refused by a firewall on rank 0's node",
        lambda lab: _use(lab, faults.rules(lab["n0"], [f"tcp dport {PORT} reject with tcp reset"])),
        (_cut_off("refused"), MISSING), also=("launch.master",), hosts=2),
    Row("MASTER_PORT is taken by another service, which says garbage", _taken,
        (Named("launch.port", ("n0",), "29500", "MASTER_PORT", blame="job"), _cut_off("foreign")),
        also=("launch.master",), hosts=2),
    Row("a node's doctor is killed while it talks to rank 0", lambda lab: None, (Named("sync.nodes", subject="n1"),),
        (4, -9, None), instead=(MISSING,), also=(MESH,), kill=True, timeout_s=20.0),
    Row("a node has another token", _env(NCCLPROBE_TOKEN="of another run of the lab"),
        (_cut_off("stranger"), Named("sync.nodes", ("node 1",), "stranger", "node")), hosts=2),
    Row(
        "the interface in NCCL_SOCKET_IFNAME is on another subnet on one node",
        _elsewhere,
        (Named(MESH, N1, "eth1", "n1"),),
        ONE_IS_BAD,
        also=("path.route",),  # of its packets, for its address is of no network there
        gpus=True,
        nics=2,
    ),
    Row("one pair of nodes cannot connect in one direction", _new_connections("drop", peer="n2"),
        (Named(MESH, BOTH, "from n2 to n1", "n2 -> n1"),), IN_PART),
    Row("new connections to one node's ephemeral ports are refused", _new_connections("reject with tcp reset"),
        (Named(MESH, says="refused"),), ONE_IS_BAD),
    Row("packets above 1400 bytes vanish on their way out of one node",
        lambda lab: _use(lab, faults.mtu_black_hole(lab["n1"])),
        (Named("path.mtu", N1, "out of n1", "n1", blame="node"),), ONE_IS_BAD),
    Row("packets above 1400 bytes vanish on their way from one node, and nobody says so", _dropped_by_size,
        (Named("path.mtu", N1, "they pass in packets of 1280 bytes", "n1", blame="link"),), ONE_IS_BAD),
    Row("one in twenty packets into one node is lost", lambda lab: _use(lab, faults.lossy(lab["n1"], 5)),
        (Named("path.loss", N1, "into n1", "n1", blame="link", severity="warn"),), WELL),
    Row(
        "one node's card sends 3 Mbit/s",
        lambda lab: _use(lab, faults.shaped(lab["n1"], 3)),
        (Named("path.rate", N1, "out of n1", "n1"),),
        ONE_IS_BAD,
        also=("path.loss",),  # a shaper that is full drops packets
    ),
    Row("packets of one node's second card leave by its first", _leaves_by_the_first,
        (Named("path.route", N1, "leave through eth0", "n1", severity="warn"),), WELL, also=("launch.master",), nics=2,
        gpus=True),
    Row("two nodes have one address on their second card",
        lambda lab: _use(lab, faults.addressed(lab["n1"], *lab["n2"].addresses(1), nic=1)),
        (Named("sync.identity", BOTH, subject="10.77.1."),), IN_PART, nics=2, gpus=True),
    Row("one node's clock is three minutes ahead", lambda lab: _use(lab, faults.clock_off(lab["n1"], 180)),
        (Named("sync.clock", N1, "n1 is 180 s ahead", severity="warn"),), WELL),
    Row(f"{DEBIAN}, as Debian writes it", _own_name("127.0.1.1", on=("n0", "n1")),
        (Named(GROUP, ("n0", "n1"), "127.0.1.1", blame="image"),), also=("launch.names",), hosts=2, words=BY_ADDRESS),
    Row(f"{DEBIAN}, under NCCL", _own_name("127.0.1.1", on=("n0", "n1")),
        (Named(GROUP, ("n0", "n1"), "gloo groups of this job", severity="warn"),), WELL, hosts=2, gpus=True,
        words=BY_ADDRESS),
    Row("gloo's card is closed on one node, under NCCL", _third_card_closed,
        (Named(MESH, N1, "gloo groups of this job", severity="warn"),), WELL, also=("env.ifname",), gpus=True, nics=3),
)  # fmt: skip
