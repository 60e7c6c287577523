"""The rendezvous of a job's processes: their TCP connections, the master's store, and agents without ranks."""

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from ncclprobe.facts.field import attempt
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import ParseError
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

LOOPBACK = ("127.", "[::1]", "::1")
_DEFAULT_PORT = 29500
_UNASKED = Absent("it was not asked")
T = TypeVar("T")


class Connection(Struct, frozen=True):
    """A TCP connection of a rank or its children, as the kernel reports it. Its ends are ``10.0.0.1:4711``.

    `unacknowledged_bytes` were sent but not acknowledged by the peer; they were retransmitted `retransmits` times.
    `probes` were sent to a peer with a zero window. `unread_bytes` arrived but were not yet read here. `heard_s` is the
    time since the peer last sent anything. `stranger`: the listening process, if it does not belong to the job.
    """

    pid: int
    local: str
    peer: str
    state: str = "established"
    unacknowledged_bytes: int = 0
    unread_bytes: int = 0
    retransmits: int = 0
    probes: int = 0
    heard_s: float = 0.0
    inode: int = 0
    acknowledged_bytes: int = 0
    received_bytes: int = 0
    stranger: str = ""


class Agent(Struct, frozen=True):
    """A torchrun agent. `nodes` is the minimum it waits for. None or empty: its command does not give the value."""

    pid: int
    nodes: int | None = None
    node_rank: int | None = None
    address: str = ""
    port: int = 0
    age_s: float = 0.0


class JobStore(Struct, frozen=True):
    """A store where processes rendezvous, as seen from this node.

    `resolved` is its numeric address, `source` the address of this node that would be used to connect to it. `sockets`
    are this node's sockets that listen on its port or were accepted there; the pid is 0 if the process is not of the
    job.
    """

    address: str
    port: int
    resolved: str | Absent = _UNASKED
    source: str | Absent = _UNASKED
    sockets: tuple[Connection, ...] | Absent = _UNASKED

    @property
    def here(self) -> bool:
        """Return whether its address belongs to this node."""
        return not isinstance(self.resolved, Absent) and (
            self.resolved.startswith(LOOPBACK) or self.resolved == self.source
        )

    @property
    def stranger(self) -> str:
        """Return the listening process, ``4711 (python3)``, if only processes outside the job listen there."""
        sockets = () if isinstance(self.sockets, Absent) else self.sockets
        listening = [each.stranger for each in sockets if each.state == "listening"]
        return listening[0] if self.here and listening and all(listening) else ""

    def same(self, other: "JobStore") -> bool:
        """Return whether both are the same store, possibly under different names."""
        return self.port == other.port and (
            self.address == other.address or self.resolved == other.resolved or (self.here and other.here)
        )

    def __str__(self) -> str:
        """Return ``10.0.0.5:29500``."""
        return f"{self.address}:{self.port}"


class Meetings(Struct, frozen=True):
    """The stores of a node's ranks and agents, and the agents' connections."""

    masters: tuple[JobStore, ...] = ()
    of_agents: tuple[Connection, ...] = ()


def decoded(text: str, kind: type[T] | object) -> T:
    """Decode a JSON text as type `kind`. Raises ParseError."""
    try:
        found: T = msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ParseError(f"{error}: {text[:80]!r}") from None
    return found


def agent(pid: int, age_s: float, options: Mapping[str, str], variables: Mapping[str, str]) -> Agent:
    """Build an agent from its options; torchrun's variables (``PET_NNODES``) fill in what the options omit."""

    def given(name: str) -> str:
        return options.get(name) or variables.get(f"PET_{name.upper()}") or ""

    host, colon, port = given("rdzv_endpoint").rpartition(":")
    address, number = (host, port) if colon else (port or given("master_addr"), given("master_port"))
    nodes = given("nnodes").partition(":")[0]
    return Agent(pid, _number(nodes), _number(given("node_rank")), address, _number(number) or _DEFAULT_PORT, age_s)


def _number(text: str) -> int | None:
    return int(text[:9]) if text.isascii() and text.isdecimal() else None


def meetings(host: Host, places: Sequence[tuple[str, int]], pids: Sequence[int], agents: Sequence[int]) -> Meetings:
    """Examine the stores at `places`, used by the processes `pids` and `agents`."""
    found = tuple(_master(host, address, port, (*pids, *agents)) for address, port in dict.fromkeys(places))
    if not agents:
        return Meetings(found)
    own = attempt(lambda: host.ask("connections", 0, *agents))
    return Meetings(found, () if isinstance(own, Absent) else decoded(own, tuple[Connection, ...]))


def _master(host: Host, address: str, port: int, pids: Sequence[int]) -> JobStore:
    resolved = attempt(lambda: _preferred_address(host.ask("resolve", address)))
    source = resolved if isinstance(resolved, Absent) else attempt(lambda: host.ask("route", resolved))

    def sockets() -> tuple[Connection, ...]:
        return decoded(host.ask("at_port", port, *pids[: bounds.NODE_RANKS]), tuple[Connection, ...])

    return JobStore(address, port, resolved, source, attempt(sockets))


def _preferred_address(said: str) -> str:
    """Return the first address that a name resolves to, IPv4 if there is one."""
    addresses = [str(each) for each in json.loads(said)["addresses"]]
    return sorted(addresses, key=lambda each: ":" in each)[0]
