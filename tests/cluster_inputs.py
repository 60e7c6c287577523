"""Paths between nodes, names, listeners and rails of made-up nodes, without a connection: rows of `FUNCTIONS`."""

import asyncio
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path as File
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

from fake_rails import FakeNodes, played
from fake_rails import names as fake_names

from ncclprobe.checks.ib.fixtures import PLAIN
from ncclprobe.checks.rail.fixtures import World
from ncclprobe.cluster import admission, gather
from ncclprobe.cluster.gather import coordinator as node_0
from ncclprobe.cluster.gather import part
from ncclprobe.cluster.mesh import listeners, walk
from ncclprobe.cluster.mesh import plan as mesh
from ncclprobe.cluster.mesh.plan import Call, NodePlan
from ncclprobe.cluster.rails import lead
from ncclprobe.cluster.rails import node as rails
from ncclprobe.cluster.rails import plan as rail_plan
from ncclprobe.cluster.rendezvous import coordinator, messages, token
from ncclprobe.cluster.rendezvous.coordinator import Peer
from ncclprobe.cluster.rendezvous.messages import Hello, Leave
from ncclprobe.engine.judge import Share
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.names import OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.reach import MeshListener, Path, Paths, Reach
from ncclprobe.facts.routes import Route, Routes
from ncclprobe.facts.traffic import Count, Traffic
from ncclprobe.host.capture import dump
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode, Finding, Severity, Status
from ncclprobe.model.rails import RailTest
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import asdict, replace
from ncclprobe.wire import WireError
from tests.one_rank import Rows, in_all_words, instead

_PLACES = {"path_mtu": 60, "resent": 100, "acked": 120, "segments": 136, "min_rtt": 148, "busy": 168, "full": 176}
_SAID = {"path_mtu": 9000, "resent": 3, "acked": 4096, "segments": 200, "min_rtt": 45, "busy": 3000, "full": 1000}


def _info(**fields: int) -> bytes:
    """What the kernel says of a connection: fields at their offsets in struct tcp_info."""
    said = bytearray(184)
    for name, value in fields.items():
        said[_PLACES[name] : _PLACES[name] + 4] = value.to_bytes(4, sys.byteorder)
    return bytes(said)


def _row(
    to: int, rate: float | None = 10.0, resent: int = 0, outcome: str = "ok", segments: int = 1000, **more: Any
) -> Path:
    found = Path(
        to, "nccl0", "eth0", "10.0.0.9", f"10.0.0.{to}", outcome, rate_gbps=rate, resent=resent, segments=segments
    )
    return replace(found, **more)


def _seen(*rows: Path, me: int = 0) -> Paths:
    return Paths(me, {}, (), rows)


_PLANS = {
    me: NodePlan(me, {}, tuple(Call(to, "nccl0", f"10.0.0.{to}", 1) for to in range(4) if to != me)) for me in range(4)
}
_HEALTHY = {me: _seen(_row((me + 1) % 4), _row((me + 2) % 4), _row((me + 3) % 4, None), me=me) for me in range(4)}
_DOUBTS = (
    [_row(3), _row(0), _row(1, None)], [_row(3, 5.0), _row(0), _row(1, None)], [_row(3, 4.99), _row(0), _row(1, None)],
    [_row(3, 10.0, 20), _row(0)], [_row(3), _row(1, None, 20)], [_row(3, 10.0, 6), _row(0)],
    [_row(3, 10.0, 5), _row(0)], [_row(3, 10.0, 5, segments=999), _row(0)], [_row(3, 10.0, 4, segments=100), _row(0)],
    [_row(0, 9.0), _row(1, 3.0), _row(3, 8.0)], [_row(3, None, 20, "stalled-back"), _row(0), _row(1, None, 4)],
    [_row(to, None, outcome="stalled-out") for to in (0, 1, 3)],
    [_row(1, 2.0, 0, "reset"), _row(3, 0.9), _row(0, 0.02)],
)  # fmt: skip
_TWICE = (
    (_row(1, 1.0, 30), _row(1, 8.0, 2)), (_row(2, None, 30), _row(2, 7.0, 1)),
    (_row(3, 9.0), _row(3, 1.0, outcome="reset")),
    (_row(1, 8.0, 2), _row(1, 1.0, 3, segments=2000)), (_row(1, None, outcome="stalled-out"), _row(1, 0.0)),
    (_row(1, 8.0, 2), _row(2, 9.0)),
    (_row(1, None, outcome="stalled-out"), _row(1, None)), (_row(1, 8.0), _row(1, None)),
    (_row(1, None, outcome="stalled-out"), _row(2, 9.0)),
    (_row(1, None, outcome="stalled-out"), _row(1, None, outcome="stalled-out", passes=1280, tries=2, refused=True)),
)  # fmt: skip
_ADDRESSES = ("10.0.0.1", "127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "n1", "::ffff:127.0.0.1",
    "255.255.255.255",
              "::ffff:10.0.0.1", "fe80::1%eth0", "fe80::1", "::1%lo", "169.254.1.1", "169.254.1.1%x",
              "2001:db8::1%a%b")  # fmt: skip


def _walks_inputs() -> Rows:
    """What is read of a connection, which paths are looked at again, and which of two looks counts."""
    said = _info(**_SAID)
    for nbytes in (0, 63, 64, 103, 104, 127, 128, 139, 140, 151, 152, 175, 176, 183, 184):
        yield f"{nbytes} bytes", walk.parse(said[:nbytes])
    for changes in ({"min_rtt": 0xFFFFFFFF}, {"min_rtt": 0}, {"path_mtu": 0}):
        yield f"{changes}", walk.parse(_info(**{**_SAID, **changes}))
    for rows in _DOUBTS:
        plans = walk.doubtful(_PLANS, _HEALTHY | {2: _seen(*rows, me=2)})
        yield f"{[(each.to, each.rate_gbps, each.resent, each.outcome) for each in rows]}", plans
    for rate in (0.02, 0.0199, 0.01):
        yield f"all at {rate}", *walk.doubtful(_PLANS, {me: _seen(_row(1 - me, rate), me=me) for me in range(2)})
    for first, second in _TWICE:
        looks = replace(_seen(first), floods=()), _seen(second)
        yield f"{first.outcome} {first.rate_gbps}, {second.outcome} {second.rate_gbps}", *walk.merged(*looks).rows
    flood = admission.Flood("10.0.0.7", 3), admission.Flood("10.0.0.8", 9)
    for one, other in product(((), flood[:1]), ((), flood[1:])):
        yield (
            f"floods {len(one)} {len(other)}",
            walk.merged(replace(_seen(), floods=one), replace(_seen(), floods=other)).floods,
        )
    infos = [
        walk.TcpInfo(acked_bytes=acked, waiting_s=waiting)
        for acked, waiting in ((None, None), (0, 0.5), (9, None), (9, 2.5), (9, 2.49), (9, 1.9))
    ]
    for before, after, all_ in product(infos[:2], infos, (True, False)):
        yield (
            f"limited {before.acked_bytes}, {after.acked_bytes} {after.waiting_s}, {all_}",
            walk.limited_by_path(before, after, 2.5, all_),
        )
    for kind, limit in product(("filtered", "silent", "reset"), (9.0, 10.0, 11.0)):
        yield f"{kind} by {limit}", walk.Caller(b"", 10.0).outcome(WireError(kind, ""), limit)
    own = MeshListener("nccl0", "eth0", "10.0.0.1", 4000)
    for address in _ADDRESSES:
        found: list[object] = []
        for ask in (mesh.check_other, walk.family_of, lambda each: walk.add_scope(each, own)):
            try:
                found.append(ask(address))
            except ValueError as refused:
                found.append(str(refused))
        yield address, *found
    four, six = (
        [MeshListener(role, "eth0", at, 4000) for role in ("nccl0", "default", "gloo0")] for at in ("10.0.0.1", "fd::2")
    )
    few = mesh.plan_mesh({0: four[:2], 2: four[:1], 7: []}, names={0: "a", 2: "b"})
    yield "few", few, mesh.plan_mesh({0: four, 1: six})
    yield "agree", [walk.agree(rates) for rates in ([1.0, 0.8], [1.0, 0.79], [9.0, 1.0, 8.0], [1.0, 2.0, 1.0])]
    plan = NodePlan(3, {3: "c"}, (Call(1, "nccl0", "10.0.0.1", 1), Call(2, "nccl0", "10.0.0.2", 1)))
    for number, value in product(
        ("rtt_s", "path_mtu", "rate_gbps", "resent", "segments", "tries", "passes"), (-1, 0, None)
    ):
        odd = replace(_row(2), **{number: value}) if number != "tries" or value is not None else _row(2)
        yield f"{number} {value}", mesh.answering(plan, _seen(_row(1), odd, _row(7), me=9))
    yield "unknown", mesh.answering(plan, _seen(_row(1, outcome="made up")))
    for nodes, roles, port, twice in (
        (63, 2, 1, 1), (64, 1, 1, 1), (2, 21, 65535, 1), (2, 22, 1, 1), (2, 1, 0, 1), (2, 1, 65536, 1), (2, 1, 5, 2),
    ):  # fmt: skip
        places = product(range(twice), range(nodes), range(roles))
        calls = tuple(Call(node, f"r{role}", "10.0.0.2", port) for _, node, role in places)
        for made in (NodePlan(0, {}, calls), NodePlan(0, {}, (), calls)):
            try:
                yield f"{nodes} {roles} {port} {twice}, {len(made.rates)}", made.check()
            except ValueError as refused:
                yield f"{nodes} {roles} {port} {twice}, {len(made.rates)}", str(refused)


def _named(*rows: tuple[str, str], down: tuple[str, ...] = ()) -> Interfaces:
    addresses = [
        Address(name, "inet6" if ":" in text else "inet", text, "255.255.255.0", name not in down)
        for name, text in rows
    ]
    names = enumerate(dict.fromkeys(name for name, _ in rows), 1)
    flags = {True: frozenset({"running", "loopback"}), False: frozenset({"running"})}
    of = {name: tuple(each for each in addresses if each.name == name) for name, _ in rows}
    return Interfaces(
        tuple(Interface(name, index, flags[name == "lo"], 1500, addresses=of[name]) for index, name in names)
    )


_ROUTES = (
    Route("0.0.0.0/0", "eth1", metric=200),
    Route("0.0.0.0/0", "eth2", metric=100),
    Route("10.0.0.0/8", "eth0", metric=1),
)


def _interfaces_inputs() -> Rows:
    """The interfaces on which a node listens, and the listeners that another one announces."""
    usual = _named(
        ("lo", "127.0.0.1"), ("eth0", "10.0.0.1"), ("eth1", "10.1.0.1"), ("eth2", "10.2.0.1"), ("eth1", "fd00::1")
    )
    facts: dict[str, dict[type, Any]] = {
        "routes": {Routes: Routes(_ROUTES, ())}, "no routes": {}, "unknown": {Interfaces: Absent("x")},
        "no settings": {Settings: Absent("x")},
        "down": {Interfaces: _named(("lo", "127.0.0.1"), ("eth0", "10.0.0.1"), ("eth2", "10.2.0.1"), down=("eth2",)),
        Routes: Routes(_ROUTES, ())},
        "loopback": {Interfaces: _named(("lo", "127.0.0.1"))},
        "named": {Environment: Environment({"GLOO_SOCKET_IFNAME": "eth2,eth0,eth1,eth2,eth0"})},
        "own name": {OwnName: OwnName("n0", ("10.1.0.1",))},
        "name is loopback": {OwnName: OwnName("n0", ("127.0.0.1",))},
        "both": {OwnName: OwnName("n0", ("10.1.0.1",)), Environment: Environment({"GLOO_SOCKET_IFNAME": "eth0"})},
        "NCCL's": {Settings: replace(PLAIN), Environment: Environment({}), Routes: Routes(_ROUTES[:1], ())},
    }  # fmt: skip
    for (name, changes), backend in product(facts.items(), ("nccl", "gloo")):
        made = Snapshot("n0", {Interfaces: usual, Settings: PLAIN, **changes})
        for way in (None, Reach("t", 1, "ok", interface="eth1"), Reach("t", 1, "ok", interface="nope")):
            yield f"{name} over {backend}, {way and way.interface}", listeners.mesh_interfaces(made, backend, way)
    right = {"role": "r", "interface": "eth0", "address": "10.0.0.2", "port": 4000}
    for key, value in (("port", 0), ("port", 1), ("port", 65535), ("port", 65536), ("port", "x"), ("port", None),
        ("role", "r" * 64),
                       ("role", "r" * 65), ("interface", "e" * 200), ("address", "127.0.0.1"),
                       ("address", 7)):  # fmt: skip
        yield (
            f"{key} {str(value)[:9]}",
            listeners.parse_listeners([{**right, key: value}, right]),
            *listeners.parse_listeners([{"role": "r"}]),
        )
    yield "many", len(listeners.parse_listeners([right] * 50))


def _peer(name: str, rank: int, **details: Any) -> Peer:
    wire: Any = None
    return Peer(
        Hello(f"{name}/{rank}", rank, name), wire, f"10.0.0.{rank}", File(), details.pop("extra", False), **details
    )


_WORST = "ib.state", Finding(Severity.FAIL, "mlx5_0:1", "is DOWN")
_LAUNCHES: dict[str, dict[str, Any]] = {
    "rank": {"node_rank": 3, "nnodes": 4, "rank": 9, "local_world_size": 2},
    "by ranks": {"rank": 5, "local_world_size": 2},
    "one each": {"rank": 5}, "none": {}, "store": {"agent_store": True, "nnodes": 2, "master_addr": "n0",
    "master_port": 1, "origins": (("master_addr", "step"),)},
}  # fmt: skip


def _meetings_inputs() -> Rows:
    """Who is called what, who was lost, and what each node is told as it leaves."""
    peers = [
        _peer("n1", 1, samples={"paths": {}}), _peer("n0", 2, lost="reset: hung up: at once"), _peer("n1", 3),
        _peer("n1", 1, extra=True, samples={"a": 1}),
    ]  # fmt: skip
    names = node_0.unique_names("n0", [*peers, _peer("n1#3", 4), _peer("n1#3#4", 4)])
    yield "names", names
    yield "lost", *node_0.troubles(peers)
    yield (
        "samples", *({"/".join(map(str, key)): f"{type(said).__name__} {said}" for key,
        said in node_0._samples(each).items()} for each in peers),
    )  # fmt: skip
    for code, worst in product((ExitCode.OK, ExitCode.INCONCLUSIVE, ExitCode.FAIL), (None, _WORST)):
        yield f"leaves {code:d}", node_0.leave_message("n1", "n0", Share(Status.FAIL, code, worst))
    for message in ({"hello": {"node_rank": "one"}}, {}, {"refused": "too late"}, {"refused": 7, "hello": 7}):
        try:
            yield f"parsed {message}", messages.parse(message, "hello", Hello)
        except (WireError, messages.Refused) as refused:
            yield f"parsed {message}", type(refused).__name__, getattr(refused, "kind", ""), str(refused)
    yield "codes", [int(part.code_of(Leave(code))) for code in range(6)]
    for name, given in _LAUNCHES.items():
        launch = Launch("torchrun", **given)
        place: Any = part.NodePlace(launch, SimpleNamespace(origin="munge"), None, (), "nccl", None, None)  # type: ignore[arg-type]
        yield (
            name, place.node_rank, place.nnodes, part.describe_meeting(place), gather.node_name(launch, Snapshot("own",
            {}), 1),
        )  # fmt: skip
    for number, length in product((0, 1, 2), (3, 300)):
        yield (
            f"node {number}, {length}",
            gather.node_name(Launch(names=("a" * length, "b")), Snapshot("own", {}), number),
        )
    told = {
        1: dump({("read", "/a"): "one"}, "rank 12"), 2: dump({}, "rank None"), 3: "none", 4: dump({},
        "rank 1234567890"), 5: dump({}, "a rank 7"),
    }  # fmt: skip
    for rank in (8, None):
        yield f"ranks of {rank}", [*gather.parse_rank_answers(Launch(rank=rank), told)]
    asks = '{"ask": ["psutil", "net_if_addrs"], "said": %s}'
    rows = json.dumps({"e": [{"address": "fe80::1%e%f"}, {"address": "10.0.0.1"}]})
    for text in (asks % json.dumps(rows), asks % '"[1"', asks % "null", ""):
        with TemporaryDirectory() as folder:
            (File(folder) / "c").write_text(f"x\n{text}\ny")
            yield f"addresses {text[-9:]}", sorted(node_0.addresses_in(File(folder) / "c"))


def _refusing(*numbers: int) -> Callable[..., Any]:
    """Stands for a bind that fails with these errors, family by family."""
    left = iter(numbers)

    def bound(family: Any, address: str, port: int) -> Any:
        if number := next(left):
            raise OSError(number, os.strerror(number))
        return f"{address} {port}"

    return bound


def _ways_inputs() -> Rows:
    """Ports that cannot be had, files that may be opened, who floods, and the way to rank 0 by its tries."""
    for numbers in product(
        (0, errno.EADDRINUSE, errno.EACCES, errno.EAFNOSUPPORT),
        (0, errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL),
    ):
        with instead(coordinator, _bound=_refusing(*numbers)):
            try:
                yield f"bound {numbers}", coordinator.bind_listener(80)
            except coordinator.CannotListen as refused:
                yield f"bound {numbers}", refused.kind, str(refused)
    infinite = coordinator.resource.RLIM_INFINITY
    for soft, hard, wanted in ((300, 2000, 1000), (300, 900, 1000), (2000, 2000, 10), (1256, 2000, 1000),
        (infinite, infinite, 99), (300, infinite, 1000),
                               (100, 100, 10)):  # fmt: skip
        now, limits = [soft, hard], list[Any]()
        with instead(
            coordinator.resource,
            getrlimit=lambda kind, now=now: tuple(now),
            setrlimit=lambda kind, both, now=now: now.__setitem__(slice(2), both),
        ):
            limits.append(coordinator.room_for(wanted))
        yield f"room {soft} {hard} {wanted}", limits, [each if each != infinite else -1 for each in now]
    for counts, members in (
        ({"a": 9, "b": 8, "c": 2}, "ab"), ({"a": 8, "b": 7}, "ab"), ({"a": 9}, "a"), ({f"x{n}": n for n in range(30)},
        ""), ({}, "a"),
    ):  # fmt: skip
        made = admission.Admission(None, 20, 8)  # type: ignore[arg-type]
        made._members.update(members)
        made._hung_up.update(counts)
        for address in ("new", "a"):
            made._count(address)
        yield f"floods {str(counts)[:30]} {members}", made.floods
    full = admission.Admission(None, 20, 8)  # type: ignore[arg-type]
    full._hung_up.update({f"x{number}": 2 for number in range(admission.MOST_SOURCES)})
    for address in ("new", "x0", "other"):
        full._count(address)
    yield "many sources", [*full._hung_up.items()][-1], full._hung_up["x0"], len(full._hung_up)
    mounts = (
        "22 1 254:0 / / rw - ext4 a\n30 22 0:26 / /home rw - nfs4 b\n31 22 0:26 / /home rw - xfs c\n1 2 3 /x - nfs4 d\n"
    )
    mounts += "1 2 3\n33 22 0 / /a\\040b rw - nfs - ext4\n34 22 0 / /h rw - nfs4 e\n"
    with TemporaryDirectory() as folder:
        (File(folder) / "m").write_text(mounts)
        yield (
            "shared", [token.is_shared(File(each), File(folder) / "m") for each in ("/home/x", "/a b/c", "/", "/homes",
            "/h", "/hh", "/h/x")],
        )  # fmt: skip


def _rail_nodes_inputs() -> Rows:
    """What a node's ports carry before a test, and how its rails begin together."""
    traffic = [
        Traffic(rdma={"m0:1": Count(0, 0), "m1:1": Count(5, 5), "m2:1": Absent("x")}),
        Traffic(rdma={"m0:1": Count(10**9, 4 * 10**9), "m1:1": Count(10**9 + 5, 5), "m2:1": Count(1, 1)}),
    ]
    ticks = iter((1.0, 3.0))
    with (
        instead(rails.traffic, read=lambda host: traffic.pop(0)),
        instead(rails.time, monotonic=lambda: next(ticks), sleep=None),
    ):
        yield "rates", rails.port_rates(None)  # type: ignore[arg-type]
    yield "fastest", *(rail_plan.fastest(each) for each in ((), (0.0,), (-1.0, 0.0), (3.0, 9.0, 4.0)))
    for count in (0, 1, 2, 8, 9, 10, 23, 1001):
        times = tuple(float(number * 7 % 11) for number in range(count, 0, -1))
        yield f"times {len(times)}", rails._few(times)


_MPI = Launch("openmpi", 0, 16, 0, 8, 2, 0, "node0", 29500, run_id="job 7")
_BY_HAND = Launch("options", 0, 2, 0, 1, 2, 0, "node0", 29500)
_TOKEN = {name: {token.VARIABLE: name} for name in ("", "fifteen letters", "sixteen  letters", "\udcff" * 16)}
_KEPT = ("0" * 31, "0" * 32, f" {'1' * 31} \n", f"\n{'1' * 64} \n", "2" * 300)


def _token_inputs() -> Rows:
    """The secret of a run by what its nodes have, how it is kept in a file, and what munge says of one."""

    def told(ask: Callable[[], Any]) -> list[Any]:
        try:
            found = ask()
        except (UsageError, WireError) as refused:
            return [getattr(refused, "kind", ""), str(refused)]
        if not isinstance(found, token.Token):
            return [each if isinstance(each, str) else each.hex()[:9] for each in found or ("none",)]
        key = found.key
        shown = key and (f"munge {key._mark.hex()[:9]}" if isinstance(key, token.Munge) else key.hex()[:9])
        marks = found.mark.hex()[:9], found.local.hex()[:9]
        return [repr(found), shown, *marks, found.by_store, found.made, found.unproven, found.proof]

    yield "derived", token.derive_key("correct horse battery").hex()
    launches = {
        "mpi": _MPI, "job 8": replace(_MPI, run_id="job 8"), "no port": replace(_MPI, master_port=None),
        "one node": replace(_MPI, nnodes=1), "by hand": _BY_HAND, "hand, 1": replace(_BY_HAND, node_rank=1),
        "store": replace(_MPI, kind="torchrun", agent_store=True),
    }  # fmt: skip
    for (name, launch), given, trust in product(launches.items(), (*_TOKEN, "slurm", "home"), (False, True)):
        variables = _TOKEN.get(given, {"SLURM_JOB_ID": "7"} if given == "slurm" else {"HOME": "/h"})
        for here in (False, True)[: 1 + (given == "slurm")]:
            with (
                instead(token, is_here=here, home_secret=lambda home, given=given: given == "home" and bytes(home)),
                instead(token.os, getuid=7),
                instead(token.secrets, token_hex=lambda count: "ab" * count),
                mock.patch.object(token, "_ROUNDS", 1),
            ):
                found = told(lambda launch=launch, known=variables, on=trust: token.find_token(known, launch, trust=on))
            yield f"{name} {given!r} {trust} {here}", found
    for text, mode, mine in product(_KEPT, (0o600, 0o400, 0o640, 0o604, 0o602), (True, False)):
        with TemporaryDirectory() as folder:
            path = File(folder, ".config/ncclprobe/token")
            path.parent.mkdir(parents=True)
            path.write_text(text)
            path.chmod(mode)
            with instead(token.os, geteuid=os.geteuid() + (not mine)):
                found = told(lambda home=File(folder): [token.home_secret(home)])
        yield f"file {text[:3]!r} {len(text)} {mode:o} {mine}", [each.replace(folder, "~") for each in found]
    for shared, kind in product((False, True), ("nothing", "folder", "pipe", "link", "no room")):
        with TemporaryDirectory() as folder:
            path = File(folder, ".config/ncclprobe/token")
            path.parent.mkdir(parents=True)
            make = {"folder": lambda path=path: path.mkdir(0o700), "pipe": lambda path=path: os.mkfifo(path, 0o600),
                    "link": lambda path=path: path.symlink_to("/etc/hostname")}.get(kind, list)  # fmt: skip
            make()
            full = mock.Mock(side_effect=OSError(errno.ENOSPC, "full") if kind == "no room" else None)
            with instead(token, is_shared=shared), instead(token.os, fsync=full):
                found = told(lambda home=File(folder): [token.home_secret(home) or "none"])
            left = [(each.name, oct(each.lstat().st_mode)) for each in path.parent.iterdir()]
        yield f"{kind}, shared {shared}", [len(each) for each in found], found[-1][-50:] * (len(found) > 1), left
    opened = "UID:          {}\n\n" + "1f" * 32
    said = (
        (0, "MUNGE:x:\n", ""), (1, "x", "refused"), (0, "", "exit code 0"), (0, opened.format(1000), ""), (1,
        opened.format(1000), "replayed"), (0, opened.format(1001), ""), (0, opened.format(1000)[:-2], "short"),
    )  # fmt: skip
    for code, out, words in said:
        run = mock.AsyncMock(return_value=(code, out.encode(), words))
        with (
            mock.patch.object(token, "_run", run),
            instead(token.os, geteuid=1000),
            instead(token.secrets, token_hex=lambda count: "cd" * count),
        ):
            for ask in (lambda: token.Munge(b"m").offer(9.0), lambda: [token.Munge(b"m").key(b"c", 9.0)]):
                found = told(lambda ask=ask: asyncio.run(_awaited(ask())))
                yield f"munge {code} {out[-7:]!r} {words}, {len(run.call_args_list)}", found, str(run.call_args[0][:2])
    for has, code in product(((), ("munge",), ("unmunge",), ("munge", "unmunge"), None), (0, 1)):
        known = mock.Mock(side_effect=OSError) if has is None else lambda name, has=has: name in has
        with instead(token, found=known, run_command=(code, b"", "")):
            yield f"here {has} {code}", token.is_here()
    later = time.monotonic() + 60.0
    for argv in (["sh", "-c", "cat; echo ' a  b' >&2; exit 3"], ["sh", "-c", "echo $0$0 >&2", "x" * 150], ["true"]):
        yield f"ran {argv[-1][:9]}", str(token.run_command(argv, b"in", later))
    yield "ran late", str(token.run_command(["sleep", "9"], b"", 0.0)), token.run_command(["/no"], b"", later)[0]
    with mock.patch.object(token, "run_in_thread", mock.AsyncMock(side_effect=TimeoutError)):
        yield "no answer", str(asyncio.run(token._run(["x"], b"", 0.0)))


async def _awaited(asked: Any) -> Any:
    return [await each for each in asked] if isinstance(asked, list) else await asked


class _Unlike(FakeNodes):
    """Nodes of a world, of which some say other things of themselves (`lists`), or of their tests (`odd`)."""

    def __init__(self, world: World, lists: Any = None, odd: Any = None, silent: Any = (), late: bool = False) -> None:
        super().__init__(world, silent, from_start=not late)
        self._lists, self._odd, self.orders = lists or {}, odd or {}, list[Any]()

    def answer(self, rank: int, order: Any) -> dict[str, Any]:
        said = super().answer(rank, order)
        if order.do == "list":
            return {**said, "rates_gbps": [400.0, 0.0], **self._lists.get(rank, {})}
        told = [(job.to, job.rail, job.other, job.leads, job.gpu, job.queue_pairs, job.test) for job in order.jobs]
        self.orders += [(rank, *each[:-1], round(each[-1].seconds, 1)) for each in told]
        return {"rows": self._odd.get(rank, list)(said["rows"])}


_ONE_PORT, _NONE = asdict(World().port(End("n1", 0))), {"ports": [], "gpus": []}
_BUSY = {"moved_gbps": {"mlx5_0:1": 8.0, "mlx5_1:1": 99.0}}
_FLEETS: dict[str, tuple[int, dict[str, Any]]] = {
    "three": (3, {}), "one rail": (3, {"lists": {1: {"ports": [_ONE_PORT], "gpus": [False]}}}),
    "no rails but one": (3, {"lists": {0: {**_NONE, "why": ""}, 2: {**_NONE, "why": "no fabric on n2"}}}),
    "two with rails": (3, {"lists": {1: {**_NONE, "why": "no fabric"}}}), "none": (2, {"lists": {0: _NONE, 1: _NONE}}),
    "why, with rails": (2, {"lists": {0: {"why": "w"}, 1: {**_NONE, "why": "x"}}}),
    "crossing": (3, {"lists": {2: {"cross": "by order"}}}), "crossing, 4": (4, {"lists": {0: {"cross": "c"}}}),
    "busy, not yet": (2, {"lists": {1: _BUSY}}),
    "busy": (2, {"lists": {0: _BUSY, 1: {"moved_gbps": {"mlx5_0:1": 8.1}}}}),
    "forced": (2, {"lists": {1: {"moved_gbps": {"mlx5_0:1": 9.0}}}}),
    "no list": (3, {"lists": {1: {"ports": 7}}}), "silent": (3, {"silent": (2, 1)}),
    "fall silent": (4, {"silent": (3, 1), "late": True}),
    "some gpus": (2, {"lists": {0: {"gpus": [True, True]}, 1: {"gpus": [False, True]}}}),
    "other number": (2, {"odd": {1: lambda rows: [{**row, "number": row["number"] + 1} for row in rows]}}),
    "other rail": (2, {"odd": {1: lambda rows: [{**row, "rail": 1 - row["rail"]} for row in rows]}}),
    "no rows": (2, {"odd": {0: lambda rows: [7, *rows]}}), "twice": (2, {"odd": {1: lambda rows: [*rows, *rows]}}),
    "out of time": (2, {"seconds": 3.0}), "just in time": (2, {"seconds": 4.5}),
}  # fmt: skip


def _rail_leads_inputs() -> Rows:
    """Runs over the rails of nodes that are not alike: why nothing is tested, who is asked what, and what is kept."""
    for name, (count, how) in _FLEETS.items():
        nodes = _Unlike(World(fake_names(count)), **{key: each for key, each in how.items() if key != "seconds"})
        began = time.monotonic()
        with mock.patch.object(lead, "time", SimpleNamespace(monotonic=lambda began=began: began)):
            seen = played(nodes._world, nodes, force=name == "forced", seconds=how.get("seconds", 600.0))
        told = [
            (each.me, len(each.ports), each.why, each.untested, each.cross, each.planned, len(each.rows), each.silent)
            for _, each in seen.items()
        ]
        plans = [each.plan for _, each in seen.items()]
        yield name, told, plans, len(nodes.waves), nodes.orders[:12], len(nodes.orders)
    listening: dict[str, Any] = {
        "all": (("gloo", "nccl1", "nccl0"), ("gloo", "nccl0", "nccl1")), "gloo": (("gloo", "x"), ("y", "gloo")),
        "none": (("gloo",), ("nccl0",)),
    }  # fmt: skip
    for (name, roles), pairs, gpu in product(listening.items(), ((0, 1), (3, 2), (99, 1)), (False, True)):
        made: Any = lead.RailRun.__new__(lead.RailRun)
        lists = {rank: [MeshListener(each, "e", f"10.0.{rank}.{at}", 4000 + at) for at, each in enumerate(of)]
                 for rank, of in enumerate(roles)}  # fmt: skip
        made._fleet, made._rank, made._number = lead.Fleet({0: "n0", 1: "n1"}, {1: "1"}, lists), {"n0": 0, "n1": 1}, 5
        ports = [replace(World().port(End("n0", 0)), queue_pairs=each) for each in pairs]
        made._ends = {rank: rails.RailEnds((ports[0], port)) for rank, port in enumerate(ports)}
        job = rail_plan.Job(End("n1", 1), End("n0", 0), RailTest(), 2)
        yield f"jobs of {name} {pairs} {gpu}", *made._jobs(job, 3, gpu)


FUNCTIONS = in_all_words({
    "walks": _walks_inputs, "interfaces-of-mesh": _interfaces_inputs, "meetings": _meetings_inputs,
    "ways": _ways_inputs, "rail-nodes": _rail_nodes_inputs, "tokens": _token_inputs, "rail-leads": _rail_leads_inputs,
})  # fmt: skip
