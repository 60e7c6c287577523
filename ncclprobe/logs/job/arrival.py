"""Which ranks joined the store of ``init_process_group``, and why others did not.

Torch's store shows who waits there. Rank 0 starts it and asks it a hundred times a second how many have joined, so the
bytes of its own connection say since when. A rank that cannot connect tries again for ever, and in between sleeps as
C++ does. The others have a connection, and wait for an answer. Once a rank has called a collective, or is connected
with another rank, it is past all that. A store that is a file is asked a hundred times a second by all who wait.
"""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.facts.job.meeting import LOOPBACK, Agent, Connection, JobStore, Meetings
from ncclprobe.facts.job.process_state import LiveRank
from ncclprobe.facts.job.ranks import JobLooks, JobProcess
from ncclprobe.logs.job.activity import Activity, RankView, doing, may_wait_for_work
from ncclprobe.logs.job.arguments import address
from ncclprobe.logs.job.calls import INIT, LookedAt, call_of, function, named
from ncclprobe.logs.job.reasons import Doing
from ncclprobe.model import bounds
from ncclprobe.model.causes import ClassName, RankClass
from ncclprobe.model.findings import Evidence, seen
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import agreeing
from ncclprobe.model.values import Struct, grouped

_HERE_LEAST_S, _ELSEWHERE_LEAST_S = 6.0, 20.0
"""Ranks that have not joined are called stuck after so long: of this node, and of others."""
_NOBODY = "nobody listens there"
_UNNUMBERED = -1
"""A rank that has not joined, of a job whose environment does not say how many it has."""
_FILE, _POLLS_HZ = "their store, a file", 20
"""Who waits for a store that is a file wakes more often in a second; who tries to connect again wakes less often."""
_ASKED_BYTES_S = 160
"""What a rank that asks the store how many have joined sends to it in a second at least: 20 questions of 8 bytes."""


class Arrival(Struct, frozen=True):
    """Ranks in init: those that joined the store `where`, and for each other rank its class and its activity.

    `connecting` are those that try to connect. `waited_s`: how long the first of those that joined has waited, or
    has tried to join; `since_s` is the same if it is known, else 0. `world` is 0 if the environment
    does not give the number of ranks.
    """

    where: str
    arrived: tuple[int, ...]
    others: Mapping[int, tuple[ClassName, Doing]]
    connecting: tuple[int, ...]
    world: int
    waited_s: float
    since_s: float
    evidence: Mapping[int, tuple[Evidence, ...]]

    @property
    def message(self) -> str:
        """Return which ranks joined and which did not, in one line."""
        since = f" {self.since_s:.0f} s ago" if self.since_s >= 1 else ""
        for_s = since.replace(" ago", "").replace(" ", " for ", 1)
        of = f" of {self.world}" if self.world else ""
        here = f"{named(self.arrived)}{of} {agreeing('has', len(self.arrived))} arrived at {self.where}{since}"
        by_text = grouped((found.text, number) for number, (_, found) in self.others.items())
        rest = [
            f"{'another rank' if _UNNUMBERED in ranks else named(ranks)} {agreeing(text, len(ranks))}"
            for text, ranks in by_text.items()
        ]
        return f"in init{for_s if not self.arrived else ''}: {'; '.join([here] * bool(self.arrived) + rest)}"


class _Caller(Struct, frozen=True):
    """A rank, the store that it calls, and its connections to it at both looks; `serves`: the store is its own."""

    rank: RankView
    process: JobProcess
    first: LiveRank
    second: LiveRank
    master: JobStore
    before: tuple[Connection, ...]
    after: tuple[Connection, ...]
    serves: bool

    @property
    def connected(self) -> bool:
        """Return whether it has joined the store."""
        return self.serves or any(each.state == "established" for each in self.after)

    @property
    def sleeps(self) -> bool:
        """Return whether its first thread sleeps as C++ does."""
        return self.first.native or self.second.native

    @property
    def asks(self) -> bool:
        """Return whether it asks its own store again and again."""
        return self.serves and self.sleeps and self.sent_bytes_s >= _ASKED_BYTES_S

    @property
    def sent_bytes_s(self) -> float:
        """Return what it sends to the store in a second."""
        sent = sum(each.acknowledged_bytes for each in self.after) - sum(c.acknowledged_bytes for c in self.before)
        return sent / max(self.second.time_s - self.first.time_s, 1e-3)

    @property
    def wakes_hz(self) -> float:
        """Return how often its first thread wakes in a second."""
        return (self.second.switches - self.first.switches) / max(self.second.time_s - self.first.time_s, 1e-3)

    @property
    def polls(self) -> bool:
        """Return whether it asks a store that is a file."""
        none = not (self.serves or self.before or self.after)
        return none and self.sleeps and self.wakes_hz >= _POLLS_HZ

    @property
    def tries(self) -> bool:
        """Return whether it tries to connect, and cannot."""
        calls = any(each.state != "established" for each in (*self.before, *self.after))
        return not self.connected and not self.polls and (self.sleeps or calls)

    @property
    def _counted_s(self) -> float:
        """Return for how long it has asked at its present rate; too long if the node is busier than before."""
        if self.asks:
            return sum(each.acknowledged_bytes for each in self.after) / self.sent_bytes_s
        return self.second.switches / self.wakes_hz if self.polls else 0.0

    @property
    def since_s(self) -> float:
        """Return the same as `waited_s`; 0 if its count of questions gives more than the process can have waited."""
        possible = self.second.age_s is None or self._counted_s <= _age_idle_s(self.rank)
        return self.waited_s if possible else 0.0

    @property
    def waited_s(self) -> float:
        """Return for how long it has waited at the store, or has tried to connect."""
        if self.asks or self.polls:
            return min(self._counted_s, self.second.age_s or self._counted_s)
        if self.tries:
            return _age_idle_s(self.rank)
        return self.second.still_s or 0.0 if self.connected else 0.0


def arrival(job: LookedAt, looks: Mapping[str, JobLooks], meetings: Mapping[str, Meetings]) -> Arrival | None:
    """Return which ranks joined the job's store; None if nothing shows that its ranks are still in init."""
    callers = {each.rank.rank: each for each in _callers(job, looks, meetings)}
    if differ := _differing_worlds(job, callers):
        return differ
    if any(len(dump) for dump in job.second.dumps):
        return None
    alive = {number: each for number, each in callers.items() if job.activities[number] not in ("gone", "stopped")}
    first = next((each for each in alive.values() if each.asks), None)
    polls = tuple(number for number, each in alive.items() if each.polls)
    tries = tuple(number for number, each in alive.items() if each.tries and job.activities[number] == "idle")
    waits = [each for each in alive.values() if each.connected and job.activities[each.rank.rank] == "idle"]
    foreign = any(each.master.stranger for each in waits)
    some = tries or polls or foreign or (waits and any(not each.connected for each in alive.values()))
    if first is None and (_meshed(job, callers) or not some):
        return None
    come = [number for number, each in alive.items() if each.connected]
    store = first or next(iter(callers[number] for number in (*come, *polls, *tries)))
    arrived = tuple(number for number in come if callers[number].master.same(store.master)) or polls
    others = dict(_others(job, callers, meetings, store, first is not None))
    world = 0 if store.process.launch.world_size is None else job.world
    if first and not others and not world:
        text = "has not connected: rank 0 still asks how many have, and no variable says how many ranks there are"
        others = {_UNNUMBERED: ("not arrived", Doing(text))}
    if not others:
        return None
    waited_s, since_s = (
        max(getattr(callers[number], name) for number in arrived or tries) for name in ("waited_s", "since_s")
    )
    near = store.master.here and (
        str(store.master.resolved).startswith(LOOPBACK) or all(number in job.ranks for number in others)
    )
    others = dict(_may_still_come(job, others, early=waited_s < (_HERE_LEAST_S if near else _ELSEWHERE_LEAST_S)))
    read = {number: tuple(_evidence(callers[number])) for number in callers}
    where = _FILE if arrived == polls else str(store.master)
    return Arrival(where, arrived, others, tries, world, waited_s, since_s, read)


def _may_still_come(
    job: LookedAt, others: Mapping[int, tuple[ClassName, Doing]], *, early: bool
) -> Iterator[tuple[int, tuple[ClassName, Doing]]]:
    """Yield the class of each rank that has not joined: slow if it is `early`, or if it may wait for one at work."""
    busy = any(job.activities.get(number) == "busy" for number in others)
    for number, (name, known) in others.items():
        waits = busy and number in job.ranks and may_wait_for_work(job.ranks[number])
        yield number, ("slow, not stuck" if name == "not arrived" and (early or waits) else name, known)


def _differing_worlds(job: LookedAt, callers: Mapping[int, _Caller]) -> Arrival | None:
    """Return which ranks were started with another WORLD_SIZE than most; None unless these still wait for it in init.

    A program may set it anew: ranks that have called something, or are connected with others, are past that.
    """
    told = {n: rank.process.launch.world_size for n, rank in job.ranks.items() if n >= 0 and rank.process}
    by_world = grouped((world, number) for number, world in told.items() if world)
    usual = max(by_world, key=lambda world: (len(by_world[world]), world), default=0)
    apart = [number for number, world in told.items() if world and world != usual]
    waited_s = min((_age_idle_s(job.ranks[number]) for number in apart), default=0.0)
    called = any(len(dump) for number in apart if (dump := job.dump(number)))
    inside = apart and all(function(call_of(job.ranks[number])) == INIT for number in apart)
    if waited_s < _HERE_LEAST_S or called or not (inside or not _meshed(job, callers)):
        return None
    if any(job.activities[number] != "idle" for number in told):
        return None
    others: dict[int, tuple[ClassName, Doing]] = {
        number: (
            "not arrived",
            Doing(f"was started with WORLD_SIZE={told[number]}, {named(by_world[usual])} with {usual}", "world-size"),
        )
        for number in apart
    }
    others |= dict.fromkeys(by_world[usual], ("waiting", Doing(f"is waiting for {usual} ranks")))
    return Arrival("", (), others, (), usual, waited_s, waited_s, {})


def arrival_of_unnumbered(job: LookedAt) -> Arrival | None:
    """Return which of the processes that another started try to join a store; None if nothing shows that.

    Their environment gives no number and no store. Who tries sleeps as C++ does; the others never came so far.
    """
    ranks, activities = job.ranks, job.activities
    if any(number >= 0 for number in ranks) or any(len(dump) for dump in job.second.dumps):
        return None
    tries = tuple(n for n, rank in ranks.items() if activities[n] == "idle" and _sleeps_natively(rank))
    late = {number: rank for number, rank in ranks.items() if number not in tries}
    if not tries or not late or any(wire.peer not in (None, wire.rank) for wire in job.wires):
        return None
    waited_s = min(_age_idle_s(ranks[number]) for number in tries)
    others: dict[int, tuple[ClassName, Doing]] = {}
    for number, rank in late.items():
        what = activities[number]
        name: ClassName = "not arrived" if what == "idle" and waited_s >= _HERE_LEAST_S else "slow, not stuck"
        name = "dead or gone" if what == "gone" else "stuck outside" if what == "stopped" else name
        found = doing(rank, what)
        others[number] = name, Doing(f"has not joined: it {found.text}", found.reason)
    others |= dict.fromkeys(tries, ("waiting", Doing("is trying to reach a store that nobody serves")))
    return Arrival("", (), others, tries, 0, waited_s, waited_s, {})


def _sleeps_natively(rank: RankView) -> bool:
    return any(isinstance(look, LiveRank) and look.native for look in (rank.first, rank.second))


def _age_idle_s(rank: RankView) -> float:
    """Return for how long a process has existed without computing."""
    at = rank.second
    return max((at.age_s or 0.0) - at.cpu_s, 0.0) if isinstance(at, LiveRank) else 0.0


def _callers(job: LookedAt, looks: Mapping[str, JobLooks], meetings: Mapping[str, Meetings]) -> Iterator[_Caller]:
    """Yield the ranks whose store and connections are known."""
    for rank in job.ranks.values():
        process, first, second = rank.process, rank.first, rank.second
        if process is None or isinstance(first, Absent) or isinstance(second, Absent):
            continue
        at = process.launch.master_addr, process.launch.master_port
        found = meetings.get(rank.node, Meetings()).masters
        master = next((each for each in found if (each.address, each.port) == at), None)
        sockets = master.sockets if master else Absent("")
        one, other = looks[rank.node].first.connections, looks[rank.node].second.connections
        if master is None or isinstance(sockets, Absent) or isinstance(one, Absent) or isinstance(other, Absent):
            continue
        end = f":{master.port}"
        before, after = (
            tuple(each for each in all_of if each.pid == process.pid and each.peer.endswith(end))
            for all_of in (one, other)
        )
        serves = any(each.state == "listening" and each.pid == process.pid for each in sockets)
        yield _Caller(rank, process, first, second, master, before, after, serves)


def _meshed(job: LookedAt, callers: Mapping[int, _Caller]) -> bool:
    """Return whether ranks are connected with each other, and not only with their store."""
    ends = {f":{each.master.port}" for each in callers.values()}
    return any(
        wire.peer not in (None, wire.rank) and not any(end.endswith(tuple(ends)) for end in _ends(wire.second))
        for wire in job.wires
    )


def _ends(connection: Connection) -> tuple[str, str]:
    return connection.local, connection.peer


def _others(
    job: LookedAt, callers: Mapping[int, _Caller], meetings: Mapping[str, Meetings], store: _Caller, asked: bool
) -> Iterator[tuple[int, tuple[ClassName, Doing]]]:
    """Yield the ranks that have not joined, in their order."""
    stranger = store.master.stranger
    held = f"; process {stranger} listens at {store.master}, and is not a rank of this job" if stranger else ""
    wrong = misnumbered(job)
    none, why = f"{held}{wrong.text}", wrong.reason or ("port-in-use" if stranger else "no-process")
    unseen = [number for number in range(job.world) if number not in job.ranks]
    come = _strangers(callers, store) if asked else 0 if stranger else len(unseen)
    for number in range(job.world):
        rank, one, what = job.ranks.get(number), callers.get(number), job.activities.get(number, "unseen")
        if rank is None or rank.process is None:
            on = _these(meetings, rank.node if rank else "these nodes")
            if rank is not None or come == 0:
                yield number, ("not arrived", Doing(f"has not connected: no process of it on {on}{none}", why))
            elif come < len(unseen):
                some = f"{len(unseen) - come} of {named(unseen)} has not connected: no process of it on"
                yield number, ("not arrived", Doing(f"is one of {len(unseen)}: {some} {on}", "no-process"))
        elif what == "gone":
            yield number, ("dead or gone", doing(rank, what))
        elif what == "stopped":
            yield number, ("stuck outside", doing(rank, what))
        elif one is not None and not one.polls and (found := _not_joined(one, what, callers, meetings, store)):
            name, text = found
            yield number, (name, Doing(f"{text.text}{held}", "port-in-use") if held and number == 0 else text)


def _not_joined(
    one: _Caller, what: Activity, callers: Mapping[int, _Caller], meetings: Mapping[str, Meetings], store: _Caller
) -> tuple[ClassName, Doing] | None:
    """Return what a rank with a process does that has not joined `store`; None: it has."""
    elsewhere = _elsewhere(one, callers)
    if not one.connected and what == "idle" and _calls_elsewhere(one):
        others = [n for n, each in callers.items() if each.connected and each.master.same(store.master)]
        meet = f"; {named(others)} {'meets' if len(others) == 1 else 'meet'} at {store.master}" if others else ""
        return "not arrived", Doing(f"has called another store, {address(one.rank.stack)}{meet}", "other-store")
    if one.tries and what == "idle":
        reason = unreachable(one.master, (*one.before, *one.after), _pids(callers), meetings)
        first = f"; no process of rank 0 is on {_these(meetings)}" if 0 not in callers and one.master.here else ""
        served = not (0 in callers and not callers[0].serves and not callers[0].tries)
        for_first = reason == _NOBODY and one.rank.rank and not served
        text = (
            f"cannot connect to {one.master}: {reason}{first}{', for rank 0 does not serve it yet' * bool(for_first)}"
        )
        found = Doing(f"{text}{elsewhere}", "other-store" if elsewhere else "unreachable")
        return "waiting" if for_first else "not arrived", found
    if not one.connected:
        name: ClassName = "not arrived" if what == "idle" else "slow, not stuck"
        found = doing(one.rank, what)
        return name, Doing(
            f"has not connected: it {found.text}{elsewhere}", "other-store" if elsewhere else found.reason
        )
    if not one.master.same(store.master):
        return "not arrived", Doing(f"has joined another store, {one.master}{elsewhere}", "other-store")
    return None


def _calls_elsewhere(one: _Caller) -> bool:
    """Return whether the program of a rank calls another store than its environment says."""
    called = address(one.rank.stack)
    return bool(called) and called not in (str(one.master), f"{one.master.resolved}:{one.master.port}")


def misnumbered(job: LookedAt) -> Doing:
    """Return which processes were started with the number of another, or with one that no rank has, as the end of a
    sentence about a missing rank; empty: none was.
    """
    told = [each.process for each in job.ranks.values() if each.process and each.process.launch.rank is not None]
    twice = {each.rank: ", ".join(map(str, (each.pid, *each.twins))) for each in told if each.twins}
    beyond = [each for each in told if (each.rank or 0) >= (each.launch.world_size or bounds.JOB_RANKS)]
    words = [f"processes {pids} have the same RANK={number}" for number, pids in twice.items()]
    words += [
        f"process {each.pid} has RANK={each.rank}, which is not below WORLD_SIZE={each.launch.world_size}"
        for each in beyond
    ]
    return Doing(
        "".join(f"; {each}" for each in words), "rank-out-of-range" if beyond else "rank-twice" if twice else ""
    )


def _elsewhere(one: _Caller, callers: Mapping[int, _Caller]) -> str:
    """Return at which other store other ranks meet, as the end of a sentence; empty: their environment has this one."""
    apart = grouped((str(each.master), n) for n, each in callers.items() if not each.master.same(one.master))
    return "".join(f"; {named(ranks)} {'meets' if len(ranks) == 1 else 'meet'} at {at}" for at, ranks in apart.items())


def _these(meetings: Mapping[str, Meetings], node: str = "these nodes") -> str:
    return "this node" if len(meetings) == 1 else node


def _pids(callers: Mapping[int, _Caller]) -> frozenset[int]:
    return frozenset(each.process.pid for each in callers.values())


def _strangers(callers: Mapping[int, _Caller], store: _Caller) -> int:
    """Return how many processes joined a store besides those that were looked at."""
    sockets = () if isinstance(store.master.sockets, Absent) else store.master.sockets
    known = {(each.peer, each.local) for caller in callers.values() for each in caller.after}
    return sum(each.state == "established" and (each.local, each.peer) not in known for each in sockets)


def unreachable(
    master: JobStore, calls: Sequence[Connection], own: frozenset[int], meetings: Mapping[str, Meetings]
) -> str:
    """Return why processes cannot connect to a store; `calls` are their connections to it, `own` their pids."""
    if isinstance(master.resolved, Absent):
        return f"the name {master.address} cannot be resolved"
    if isinstance(master.source, Absent):
        return "this node has no route to it"
    known = [each for one in meetings.values() for each in one.masters if str(each) == str(master) and each.here]
    at = master if master.here else next(iter(known), None)
    if at is not None and not isinstance(at.sockets, Absent):
        called = at is not master or bool(calls)
        return _describe_listeners([each for each in at.sockets if each.state == "listening"], at, own, called)
    if any(each.state == "connecting" for each in calls):
        return "nothing answers: its host is down, or a firewall drops the packets"
    if any(each.state == "closed by its peer" for each in calls):
        return "what listens there closes the connection: it is not the store of this job"
    return "it refuses: nobody listens there, or a firewall rejects the packets"


def _describe_listeners(listeners: Sequence[Connection], at: JobStore, own: frozenset[int], called: bool) -> str:
    if not listeners:
        return _NOBODY
    hosts = sorted({each.local.rpartition(":")[0] for each in listeners})
    if not str(at.resolved).startswith(LOOPBACK) and all(host.startswith(LOOPBACK) for host in hosts):
        return f"it listens on {hosts[0]} only, which no other address reaches"
    if ":" in str(at.resolved) and not any(":" in host for host in hosts):
        return f"it listens on {hosts[0]} only, an address of IPv4"
    if ":" not in str(at.resolved) and all(":" in host and host != "[::]" for host in hosts):
        return f"it listens on {hosts[0]} only, an address of IPv6"
    if any(each.pid in own for each in listeners) and not called:
        return "it listens there, and is not called: the program has set another MASTER_ADDR or MASTER_PORT"
    if any(each.pid in own for each in listeners):
        return "it listens, and has not answered yet"
    return "another program listens there, which is not the store of this job"


def _evidence(caller: _Caller) -> Iterator[Evidence]:
    if caller.serves:
        yield seen(f"{caller.rank.node}:/proc/{caller.process.pid}", f"listens at {caller.master}")
    for each in caller.after[:1]:
        yield seen(f"{caller.rank.node}:/proc/{caller.process.pid}", f"connection to {each.peer}: {each.state}")


# Agents of torchrun, before there are ranks.


def agent_rows(node: str, agents: Sequence[Agent], met: Meetings) -> Iterator[RankClass]:
    """Yield for each agent without ranks whether it waits for others, or cannot reach them."""
    for each in agents:
        late = each.age_s >= _ELSEWHERE_LEAST_S and each.nodes != 1
        name, found = _agent(each, agents, met)
        name, process = name if late else "slow, not stuck", f"{node}:{each.pid}"
        kind = found.reason or "torchrun"
        yield RankClass(name, (), (node,), (process,), f"torchrun {each.pid} {found.text}", reason=kind)


def _agent(agent: Agent, agents: Sequence[Agent], met: Meetings) -> tuple[ClassName, Doing]:
    master = next((each for each in met.masters if (each.address, each.port) == (agent.address, agent.port)), None)
    none = "it has started no rank"
    if master is None or isinstance(master.sockets, Absent):
        return "cannot tell", Doing(f"meets other nodes in a way that is not known; {none}")
    own = [each for each in met.of_agents if each.pid == agent.pid and each.peer.endswith(f":{master.port}")]
    if any(each.state == "listening" and each.pid == agent.pid for each in master.sockets):
        missing = (agent.nodes or 0) - 1 - _joined(agent, master, met)
        if agent.nodes and missing <= 0:
            return "cannot tell", Doing(f"has met all {agent.nodes} nodes; {none}")
        some = f"{missing} of {agent.nodes}" if agent.nodes else "other"
        return "not arrived", Doing(f"is waiting for {some} nodes; {none}")
    if any(each.state == "established" for each in own):
        return "not arrived", Doing(f"has joined at {master}, and is waiting for other nodes; {none}")
    reason = unreachable(master, own, frozenset(each.pid for each in agents), {"": met})
    return "not arrived", Doing(f"cannot connect to {master}: {reason}; {none}", "unreachable")


def _joined(agent: Agent, master: JobStore, met: Meetings) -> int:
    """Return how many other agents are connected with this one's store: of other nodes one for each address."""
    pids = {(each.peer, each.local): str(each.pid) for each in met.of_agents}
    sockets = () if isinstance(master.sockets, Absent) else master.sockets
    come = [each for each in sockets if each.state == "established"]
    found = {pids.get((each.local, each.peer), each.peer.rpartition(":")[0]) for each in come}
    return len(found - {str(agent.pid)})
