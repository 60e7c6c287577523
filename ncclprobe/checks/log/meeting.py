"""How ranks meet, in NCCL's groups and gloo's: names, ports, the master, strangers, and the ranks that joined."""

import re
from collections import Counter
from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import (
    JOB,
    LIMIT,
    RESTART,
    UNPROVEN,
    blame_no_rank,
    demoted,
    each,
    of_the_job,
    warned,
)
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.nccl_lines import INFO_DIFFERS, is_build_mismatch
from ncclprobe.logs.outcome import worked_before
from ncclprobe.logs.paragraphs import OF_EACH_OTHER
from ncclprobe.logs.rank_ends import rank_ends
from ncclprobe.logs.texts import between, number
from ncclprobe.logs.torch_lines import ranks_in, waited
from ncclprobe.model.findings import Finding
from ncclprobe.model.values import grouped

_UNRESOLVED = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "No address associated with hostname",
    "nodename nor servname provided",
    "Could not resolve hostname",
    "Name does not resolve",
)
_ELSEWHERE = ("HTTP", "urllib", "huggingface", "wandb", "requests.", "s3.", "git ")
_GAVE_UP = ("The client socket has failed to connect to", "The client socket has timed out", "socket.gaierror")


@cause(
    code="dns-unresolved",
    signs=(*_UNRESOLVED, "network addresses of (", *_GAVE_UP),
    doctor="launch.master",
    bad=lambda: ["socket.gaierror: [Errno -2] Name or service not known"],
    good=lambda: [
        "[W socket.cpp:697] [c10d] The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - "
        "Name or service not known).\nloss 2.1"
    ],
)
def unresolved_name(log: JobLog) -> Iterator[Finding]:
    """A host name that ranks need for the rendezvous does not resolve.

    Right: Every name that ranks looked up was resolved.
    Why: a rank whose resolver does not know MASTER_ADDR, or a host in the hostfile, cannot join. torch warns at every
    attempt and then tries the other address family, so only its final error counts.
    Fix: run `getent hosts NAME` on the host that reports it. Set MASTER_ADDR to an IP address. In Kubernetes, use a
    headless service that publishes addresses before pods are ready.
    """
    for event in log.having(*_UNRESOLVED):
        name = between(event.text, "network addresses of (", ",")
        final = "failed to connect to any" in event.text or not name
        if any(text in event.text for text in _ELSEWHERE) or _is_asked_again(log, event):
            continue
        name = name or between(event.text, "can't resolve '", "'")
        if demoted(event) or not (final or _given_up(log, event, name)):
            continue
        what = f"{name} does not resolve" if name else "a name does not resolve"
        yield said(log, event, what, **LIMIT)


_AT_THE_END = 6


def _is_asked_again(log: JobLog, event: LogEvent) -> bool:
    """Return whether busybox' nslookup wrote it, as in scripts that wait for a name, and the log goes on without it."""
    asks = "nslookup: can't resolve" in event.text
    return asks and ("'(null)'" in event.text or event.line <= log.streams[event.stream].nlines - _AT_THE_END)


def _given_up(log: JobLog, event: LogEvent, name: str) -> bool:
    """Return whether the same log gives up the connection to that name after it failed to resolve for IPv4 or all.

    torch 2.13 writes it only for IPv6; a resolver that does not answer answers for neither family.
    """
    if _is_ipv6_only(event):
        return False
    return any(
        other.stream == event.stream and other.line >= event.line and f"({name}," in other.text
        for other in log.having(*_GAVE_UP)
    )


_IN_USE = ("Address already in use", "address already in use", "EADDRINUSE", "errno: 98")
_RAS = "RAS failed to establish a client listening socket"
_NO_ADDRESS = "has failed to listen on any local network address"
_FREE = (
    "run `ss -ltnp 'sport = :{port}'` on the host of rank 0. End the leftover process, or choose "
    "another MASTER_PORT (on one node use `torchrun --standalone` or `--rdzv-endpoint=localhost:0`)."
)
_LIVED_WITH = ("TORCHELASTIC_USE_AGENT_STORE is enabled so ignoring", "rying another port", "; trying ", ", trying ")


@cause(
    code="addr-in-use",
    signs=(*_IN_USE, _RAS, _NO_ADDRESS, "Started server process"),
    doctor="launch.port",
    bad=lambda: [
        "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in "
        "use).\n"
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    ],
    good=lambda: [
        "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in "
        "use).\nloss 2.1"
    ],
)
def port_taken(log: JobLog) -> Iterator[Finding]:
    """A port that the job needs is taken.

    Right: Every port that the job needed was free.
    Why: rank 0 listens on MASTER_PORT. If another job on this host, or a process left by an earlier start, already
    listens there, ranks may even join the wrong store.
    Fix: run `ss -ltnp` on the host of rank 0. End the leftover process, or choose another MASTER_PORT (on one node use
    `torchrun --standalone` or `--rdzv-endpoint=localhost:0`).
    """
    given_up = {event.stream for event in log.having(_NO_ADDRESS) if not warned(event)}
    for event in log.having(*_IN_USE):
        if demoted(event) or (warned(event) and event.stream not in given_up) or "ras/" in event.place:
            continue  # of one address family: torch says at E when no address is left
        if any(text in event.text for text in _LIVED_WITH):
            continue
        port = number(between(event.text, "port: ")) or number(between(event.text, "]:"))
        message = f"port {port} is already taken" if port else "a port is already taken"
        yield said(log, event, message, remedy=_FREE.format(port=port) if port else "", **JOB)


_DENIED = ("errno: 13 - Permission denied", "Call to bind failed : Permission denied", "name: EACCES", "[Errno 13]")


@cause(
    code="port-privileged",
    signs=(*_DENIED, "Call to bind failed: Permission denied"),
    doctor="launch.port",
    bad=lambda: [
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 80, useIpv6: false, code: -13, name: EACCES, message: permission denied"
    ],
    good=lambda: ["PermissionError: [Errno 13] Permission denied: '/data/out.pt'"],
)
def port_privileged(log: JobLog) -> Iterator[Finding]:
    """This user is not allowed to bind the port.

    Right: No port was denied because of missing permission.
    Why: only root can bind ports below net.ipv4.ip_unprivileged_port_start (1024), and some clusters reserve more.
    Fix: choose a MASTER_PORT of 1024 or more, outside net.ipv4.ip_local_port_range.
    """
    for event in log.having(*_DENIED, "Call to bind failed: Permission denied"):
        if "bind" in event.text or "server socket" in event.text:
            yield said(log, event, "this user is not allowed to bind the port", **JOB)


_TRIES = "The client socket has failed to connect to "
_FEWEST_TRIES, _TIMED_OUT, _NO_ROUTE = 2, 110, 113
_MASTER = (
    "The client socket has timed out after",
    "The client socket has failed to connect to any network address of",
    "connect() timed out",
    "The connection to the C10d store has failed",
    "RendezvousConnectionError",
    "the connection to the C10d store has failed",
)


_HAD_MET = ("has failed to send a keep-alive heartbeat to the rendezvous",)
"""torchrun's agent, which has met the others before; later the agent that keeps the store has ended. It reports a
failed shutdown of the rendezvous also if it never joined it.
"""


@cause(
    code="master-unreachable",
    signs=(*_MASTER, *_UNRESOLVED, _TRIES, *_HAD_MET, "clients joined"),
    doctor="launch.master",
    echoes=("dns-unresolved", "addr-in-use", "port-privileged", "rank-crashed", "oom", "timeout-straggler"),
    bad=lambda: [
        "[E socket.cpp:1013] [c10d] The client socket has timed out after 60000ms while trying to connect to "
        "(10.0.0.1, 29500)."
    ],
    good=lambda: [
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - Connection "
        "refused).\nloss 2.1"
    ],
)
def master_unreachable(log: JobLog) -> Iterator[Finding]:
    """MASTER_ADDR:MASTER_PORT cannot be reached, or no process listens there.

    Right: Every rank reached MASTER_ADDR:MASTER_PORT.
    Why: all ranks connect to the store that rank 0 opens. A wrong address, a firewall and a rank 0 that was never
    started look the same to the other ranks, which retry until they time out.
    Fix: on a failing host run `nc -vz MASTER_ADDR MASTER_PORT` while rank 0 runs. Compare MASTER_ADDR with rank 0's
    address, open the port between the hosts, and check that rank 0 has started.
    """
    for event in log.having(*_MASTER):
        if warned(event) or any(text in event.text for text in _UNRESOLVED) or _never_resolved(log, event):
            continue
        met = any(other.stream == event.stream and other.line <= event.line for other in log.having(*_HAD_MET))
        if met or ("endezvous" in event.text and worked_before(log, event)):
            yield said(log, event, _GONE, codes=_ENDED, blame="unknown", remedy=_OWN_STORE)
            continue
        place = between(event.text, "network address of (", ")") or between(event.text, "connect to (", ")")
        message = f"{place.replace(', ', ':')} cannot be reached" if place else "the job's store cannot be reached"
        if (name := place.partition(", ")[0]).isdecimal() and len(name) <= _DIGITS_OF_AN_ADDRESS:
            message = f"the host name {name} is interpreted as the address {_parse_number_as_address(int(name))}"
            yield said(log, event, message, peers=(0,), remedy=_RENAME, **JOB)
            continue
        listens = any(found.rank == 0 for found in log.having("clients joined"))
        codes = ("port-blocked", "master-unreachable") if listens and event.rank != 0 else ()
        yield said(log, event, message, peers=(0,), codes=codes, **LIMIT)
    for event in _tries_to_the_end(log):
        message = "the rank had not reached the job's store when its log ended"
        yield said(log, event, message, peers=(0,), codes=("master-unreachable", "port-blocked"), **JOB)


_ENDED = ("rank-crashed", "ended-from-outside")
_GONE = "the launchers' store was reachable before but is now gone, because the launcher that ran it has exited"
_OWN_STORE = (
    "check the launcher that ran the store: that of node 0, or of another job with the same endpoint. "
    "Give each job its own --rdzv-endpoint, or use --standalone on one node"
)


_DIGITS_OF_AN_ADDRESS = 10
_RENAME = (
    "give the host a name that contains a letter (docker run --hostname, Slurm's NodeName), or set "
    "MASTER_ADDR or --rdzv-endpoint to an address"
)


def _parse_number_as_address(number: int) -> str:
    """Return the IPv4 address that the resolver reads a number as (inet_aton)."""
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def _tries_to_the_end(log: JobLog) -> Iterator[LogEvent]:
    """Yield the last try of a log in whose last lines torch only tries to connect, and is not answered."""
    errors = tuple(f"errno: {error} " for error in (_TIMED_OUT, _NO_ROUTE))
    tries = (e for e in log.having(_TRIES) if warned(e) and any(error in e.text for error in errors))
    for stream, events in grouped((event.stream, event) for event in tries).items():
        last = [event for event in events if event.line > log.streams[stream].nlines - _FEWEST_TRIES]
        if len(last) == _FEWEST_TRIES:
            yield last[-1]


def _never_resolved(log: JobLog, event: LogEvent) -> bool:
    """Return whether the same log reported before that this name does not resolve."""
    name = between(event.text, "connect to (", ",")
    return bool(name) and any(
        other.stream == event.stream and other.line < event.line and f"({name}," in other.text
        for other in log.having(*_UNRESOLVED)
        if not _is_ipv6_only(other)
    )


def _is_ipv6_only(event: LogEvent) -> bool:
    return "The IPv6 network" in event.text and "Temporary failure" not in event.text


_TRIED_IN_VAIN = "The client socket has timed out after"
_MOST_RANKS = 1 << 16
_LATE = ("timeout-straggler",)
_STORE_TIMED_OUT = "waitForInput: socket"
_JOINED = ("clients joined", "store based barrier")
_KEY = "store_based_barrier_key"
_TWICE = "has already checked in"
_MISMATCH = (
    "mismatch in rank count from procs",
    INFO_DIFFERS,
    _TWICE,
    "Invalid rank requested",
    "improper usage of ncclCommInitRank",
)


@cause(
    code="world-size-mismatch",
    signs=(*_JOINED, _KEY, *_MISMATCH, "RendezvousTimeoutError", _TRIED_IN_VAIN, _STORE_TIMED_OUT),
    doctor="launch.vars",
    echoes=("rank-crashed", "master-unreachable", "port-blocked", "dns-unresolved", "addr-in-use", "oom"),
    bad=lambda: ["n1:7:7 [0] init.cc:1720 NCCL WARN Invalid rank requested : 8/8"],
    good=lambda: [
        "INFO: Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "
        "(world_size=2, num_workers_joined=1, timeout=0:30:00)"
    ],
)
def ranks_missing(log: JobLog) -> Iterator[Finding]:
    """Ranks disagree on the size of the job, or some did not join.

    Right: As many ranks joined as the launcher announced.
    Why: each rank gets the number of ranks from its launcher. If one rank got 8 and another 16, if two ranks have the
    same number, or if a node was never started, the others wait until they time out.
    Fix: compare WORLD_SIZE, RANK and --nnodes/--node-rank on all hosts. Check that a launcher was started on every
    host, and end ranks left by an earlier start.
    """
    for event in log.having(*_MISMATCH):
        if not demoted(event) and not is_build_mismatch(event.text):
            twice = number(between(event.text, "rank ")) if _TWICE in event.text else None
            ranks = _odd_sized_ranks(log) if twice is None else (twice,)
            yield said(log, event, "ranks disagree on the members of the job", ranks=ranks, **JOB)
    late_lines = tuple(came_too_late(log))
    late = tuple(sorted({event.rank for event in late_lines if event.rank is not None}))
    shut_out = any("try=0" not in event.text for event in log.having(_TRIED_IN_VAIN) if event not in late_lines)
    codes = ("port-blocked", "master-unreachable", "world-size-mismatch") if shut_out else ()
    silent = {each.rank: each for each in rank_ends(log, ()).silent}
    came = {event.rank for event in log.having(*_JOINED[1:], _KEY)}
    for event in log.having(*_JOINED):
        if found := waited(event.text):
            uncalled = [rank for rank in range(min(found.wanted, _MOST_RANKS)) if rank not in came]
            known = (tuple(each) for each in (uncalled, silent) if len(each) == found.wanted - found.came)
            absent = next(known, ())
            started = bool(absent) and all(rank in silent and silent[rank].has_log for rank in absent)
            own: tuple[str, ...] = codes
            if late_lines or started or absent == tuple(uncalled):
                own = _LATE if late_lines else ("rank-crashed", *_LATE, "world-size-mismatch")
            message = _who_came(found.came, found.wanted)
            message += f": rank {', '.join(map(str, late or absent))}" if late or absent else ""
            whose = JOB if own == codes else RESTART if late else UNPROVEN
            told = said(log, event, message, ranks=late or absent, codes=own, **whose)
            yield told if late or absent else blame_no_rank(told)
    few = "fewer nodes than requested joined in time"
    yield from each(log, ("RendezvousTimeoutError",), few, codes=("world-size-mismatch", *_LATE), **UNPROVEN)


def _odd_sized_ranks(log: JobLog) -> tuple[int, ...]:
    """Return the ranks that began one communicator with another number of ranks than most of it."""
    begun: dict[str, dict[int, int]] = {}
    for event in log.having("Init START"):
        rank, size = number(between(event.text, "rank ")), number(between(event.text, "nranks "))
        comm = between(event.text, "commId ", " ")
        if comm and rank is not None and size is not None:
            begun.setdefault(comm, {})[rank] = size
    for sizes in begun.values():
        (usual, most), *others = Counter(sizes.values()).most_common()
        if others and most > others[0][1]:
            return tuple(sorted(rank for rank, size in sizes.items() if size != usual))
    return ()


def came_too_late(log: JobLog) -> Iterator[LogEvent]:
    """Yield the lines of ranks that began to call the store only when others had given up, by times of one clock."""
    gave_up = [e.time_s for e in log.having(_STORE_TIMED_OUT, "clients joined") if e.time_s is not None and _gave_up(e)]
    tried = [*log.having(_TRIED_IN_VAIN)] if gave_up else []
    for event in tried if len({event.host for event in tried}) < 2 else ():
        took_ms = number(between(event.text, _TRIED_IN_VAIN).strip()) or 0
        if event.time_s is not None and event.time_s - took_ms / 1000 > max(gave_up):
            yield event


def _gave_up(event: LogEvent) -> bool:
    return "clients joined" in event.text or "timed out after" in event.text


def _who_came(came: int, wanted: int) -> str:
    if came > wanted:
        return f"{came} ranks joined, but {wanted} were expected"
    missing = wanted - came
    return f"{missing} of {wanted} ranks did not join" if missing else f"all {wanted} ranks joined, but too late"


_LISTED = {
    "issing ranks:": ("the others waited for", "timeout-straggler", "collective-desync"),
    "imed out task names:": ("the others waited for", "world-size-mismatch", "timeout-straggler"),
    "stopped sending heartbeats):": ("heartbeats stopped from", "rank-crashed"),
    "have not arrived:": ("the others waited at a barrier for", "rank-crashed", "timeout-straggler"),
}
"""Beneath or behind which texts Horovod, JAX and TensorFlow list ranks, and what may have become of these."""
_TASK = re.compile(r"/task:(\d{1,7})")


@cause(
    signs=tuple(_LISTED),
    doctor="launch.vars",
    echoes=("*",),
    bad=lambda: [
        "Missing ranks:\n0: [grads/HorovodAllreduce_0, grads/HorovodAllreduce_1]\n3: [grads/HorovodAllreduce_0]"
    ],
    good=lambda: ["Missing ranks:\nnone"],
)
def listed_as_missing(log: JobLog) -> Iterator[Finding]:
    """Horovod or JAX lists ranks that did not arrive.

    Right: No framework listed missing ranks.
    Why: the framework knows which ranks have submitted a tensor or reached a barrier. The others have exited, were
    never started, are in another call, or are still busy.
    Fix: read the last lines of these ranks. Compare the number of started processes with the job size that each was
    given.
    """
    for event in log.having(*_LISTED):
        kind = next((kind for kind in _LISTED if kind in event.text), "")
        listed = event.text.rpartition(":")[2].strip(" ]")
        ranks = tuple(sorted(ranks_in(listed))) if kind and listed.replace(", ", "").isdecimal() else ()
        ranks = ranks or tuple(sorted({int(task) for task in _TASK.findall(between(event.text, kind))}))
        if ranks:
            what, *codes = _LISTED[kind]
            names = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:16]))}"
            if OF_EACH_OTHER in event.text:
                what, codes = "these ranks submitted different tensors:", ["collective-desync"]
            whose = UNPROVEN if codes == ["rank-crashed"] else RESTART
            yield said(log, event, f"{what} {names}", ranks=ranks, codes=tuple(codes), **whose)


_STORE = (
    "wait timeout after",
    "Socket Timeout",
    "Failed to recv, got 0 bytes",
    "Failed to send, sent 0 bytes",
    "Store is down while",
    "Broken pipe",
    'Failed to check the "should dump" flag on TCPStore',
    "recvValue failed",
    "sendBytes failed",
    "failed to recv, got 0 bytes",
)


@cause(
    signs=_STORE,
    bad=lambda: [
        "[rank1]: torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0"
    ],
    good=lambda: [
        "[rank1]:[W TCPStore.cpp:115] [c10d] recvVector failed on SocketImpl(fd=64): Failed to recv, got 0 bytes. "
        "Connection was likely closed. Did the remote server shutdown or crash?"
    ],
)
def store_left(log: JobLog) -> Iterator[Finding]:
    """A rank lost the store, or waited in it for another rank.

    Right: The store answered every rank that waited for it.
    Why: rank 0 runs the store. If rank 0 exits, or the rank that should write a key has failed, the others report it.
    Fix: look for the rank that failed first. If the key is like `/0//cuda//0`, the rank waits for the ncclUniqueId of
    the group's first rank.
    """
    for event in log.having(*_STORE):
        if of_the_job(event) and not demoted(event) and not warned(event):
            yield consequence(log, event, "lost the store, or waited in it for another rank")


_WAITED = "wait timeout after "
_CPU_KEY = "//cpu//"
LINE = "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/4"


@cause(
    code="world-size-mismatch",
    signs=(_WAITED, "clients joined"),
    doctor="launch.vars",
    echoes=("rank-crashed", "gloo-iface", "oom", "fd-limit", "master-unreachable", "dns-unresolved", "port-blocked"),
    bad=lambda: [LINE],
    good=lambda: ["torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/info"],
)
def no_address_of_a_rank(log: JobLog) -> Iterator[Finding]:
    """A rank of a gloo group never wrote its address to the store.

    Right: Every rank found the addresses of the others.
    Why: each rank of the group writes its address under its number and reads those of all others. If an address is
    missing, no process has that number. A rank was not started, two ranks share a number, or ranks disagree on the size
    of the job. If the missing rank has a log, the reason is in it.
    Fix: compare WORLD_SIZE and RANK of all ranks. Check that the rank with that number was started, and read its log.
    """
    if next(log.having("clients joined"), None):
        return  # the store's own rank waits for the others, and writes no address before they have come
    waits = [(event, rank) for event in log.having(_WAITED) if (rank := _awaited(event)) is not None]
    unsaid = {rank for event, rank in waits if rank not in log.ranks or event.rank == rank}
    waiters = Counter(rank for _, rank in waits)
    for event, rank in waits:
        if rank in unsaid:
            message = f"rank {rank} did not write its address to the store"
            told = said(log, event, message, ranks=(rank,), peers=(rank,), **JOB)
            yield told if waiters[rank] > 1 else blame_no_rank(told)  # a rank that alone waits may be wrong of the size


def _awaited(event: LogEvent) -> int | None:
    """Return the rank whose address is the key; None: the key is another."""
    key = between(event.text, "keys: ").split(",")[0].strip()
    rank = number(key.rpartition("/")[2]) if _CPU_KEY in key else None
    return rank if rank is not None and key.endswith(f"/{rank}") else None
