"""What ranks measure and send to rank 0, played in this process without a store: rows of `FUNCTIONS`."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from conftest import answers

from ncclprobe.checks.run.rows import ROW
from ncclprobe.cluster.mesh import listeners, walk
from ncclprobe.commands import pairs
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.traffic import Count, Traffic
from ncclprobe.host.capture import load
from ncclprobe.model.errors import Denied, Missing, NcclprobeError, ProbeError, UsageError
from ncclprobe.model.measurement import SkippedRow
from ncclprobe.model.ops import OPS
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.training import Rung
from ncclprobe.model.values import asdict, replace
from ncclprobe.nccl import selection
from ncclprobe.session.measure import collectives, copies, interference, ladder, nccl_debug, nic_traffic, rank_nics
from ncclprobe.session.measure import pairs as pairs_part
from ncclprobe.session.measure import training as training_part
from tests.command_inputs import CAPTURES
from tests.one_rank import NOWHERE, Noted, Others, Rows, captured, in_all_words, instead, run_of, seat

_ADDRESSES = [[], ["fd00::2", "10.0.0.3", "10.0.0.4"], ["fe80::1%eth0"], ["fd00::2", "fd00::1"], ["10.1.0.1%x"]]
_NODE = {"nics": ["m0", "m1"], "near": {"g0": ["m1", "m0"], "g1": ["m1", "m0"], "g2": ["m9"], "g3": []}}
_CARDS: list[dict[str, Any]] = [
    {"gpu": "g0"}, {"gpu": "g1"}, {"gpu": "g0", "own": "eth1"}, {"gpu": "g2", "node": _NODE},
    {"gpu": None, "own": "eth0"}, {"gpu": "g0", "node": _NODE},
]  # fmt: skip
_INTERFACES = ([["e1", "e0"], ["e0"]], [["e0"], []], [["e0"], None], [[f"e{n}" for n in range(9)], ["e1"]])
_LINKS: tuple[list[Any], ...] = (
    [None] * 4, [{"node": "n0", "interface": "e0", "gbps": 9.0, "virtual": False}, None] * 2,
    [{"node": "n1", "interface": "e1", "gbps": None, "virtual": True}] * 3,
)  # fmt: skip
_HCAS = (None, (), ("m0:1", "m1:1", "m2:1"))
_GIDS = [SimpleNamespace(netdev=name) for name in ("e5", None, "e4", "e5")]
_PORTS = [SimpleNamespace(name=f"m{number}:1", gids=each, counters=number == 0)
          for number, each in enumerate(([SimpleNamespace(netdev="e9")], _GIDS, Absent("no"), _GIDS[2:]))]  # fmt: skip
_GPUS = {Gpus: Gpus((Gpu(0, pci="00000000:01:00.0"), Gpu(1, pci="00000000:02:00.0")), "", (12, 8))}
_BARE, _SEEN = Snapshot("n0", {**_GPUS}), Snapshot("n0", {**_GPUS, Fabric: mock.Mock(spec=Fabric, ports=_PORTS)})
_STREAMED = ((0, [[3.0, 1.0], [], [2.0, 8.0]]), (0, None), (1, None), (2, [[1.0], [2.0], [3.0]]))


def _nics_inputs() -> Rows:
    """The interfaces and ports that carry a rank's traffic, and the slowest link between nodes."""
    for name in ("hgx-h100", "guest-rxe-root", "laptop", "aws-p4d", "one-gpu"):
        node, host = captured(name), load(CAPTURES / f"{name}.jsonl")
        yield f"nccl on {name}", nic_traffic.nccl_devices(node), rank_nics.snapshot_nics(node)
        for ifname in ("", "lo", "eth0") if name in ("one-gpu", "laptop") else ():
            with instead(rank_nics.socket, gethostname="localhost"):
                found = rank_nics.interface(host, {"GLOO_SOCKET_IFNAME": ifname})
            info = rank_nics.interface_info(found, "n7")
            yield f"gloo on {name} by {ifname!r}", found and found.name, found and rank_nics.address_of(found), info
    for hcas, sockets, near, facts in product(_HCAS, (None, (), ("e0", "e1")), (None, ("g",)), (_SEEN, _BARE)):
        ports, own, gpus = (
            SimpleNamespace(chosen=names and [SimpleNamespace(port=n, name=n, gpu="GPU1", nics=("m0",)) for n in names])
            for names in (hcas, sockets, near)
        )
        with instead(selection, choose=SimpleNamespace(hcas=ports, sockets=own, gpudirect=gpus)):
            told = nic_traffic.nccl_devices(facts), rank_nics.snapshot_nics(facts)
        yield f"{hcas} {sockets} {near} {facts is _SEEN}", *told
    cards: Any = [SimpleNamespace(addresses=[SimpleNamespace(address=each) for each in those]) for those in _ADDRESSES]
    looks = (None, Noted(snapshot=captured("laptop")))
    for own, ifname in product((SimpleNamespace(name="eth0"), None), ("ib0,=eth3", "")):
        with instead(rank_nics, interface=own), mock.patch.dict("os.environ", {"GLOO_SOCKET_IFNAME": ifname}):
            told = [rank_nics.rank_info(to, NOWHERE, "g0", look) for to in ("gloo", "nccl") for look in looks]  # type: ignore[arg-type]
            names = nic_traffic.gloo_interfaces(NOWHERE)
        yield f"own {bool(own)}, {ifname}", told, names, [rank_nics.address_of(each) for each in cards]
    few = rank_nics.nics(("a", "a"), [{"gpu": "g0"}, {"gpu": "g3", "own": ""}])
    yield "ranks", *rank_nics.nics(("a", "a", "b", "a", "b", "c"), _CARDS), *few
    over = [nic_traffic.socket_names(names, hosts) for names in _INTERFACES for hosts in (("a", "a"), ("a", "b"))]
    yield "sockets", *over
    for (number, infos), (rank, rates) in product(enumerate(_LINKS), _STREAMED):
        decided = {"stream": number != 1, "token": "t", "seconds": 3.0}
        exchange, streamed = Others(decided if rank else infos[1:], rank=rank), list[str]()

        async def streams(*given: Any, streamed: list[str] = streamed, rates: Any = rates) -> Any:
            streamed.extend((type(given[2]).__name__, given[3]))
            return rates

        card = SimpleNamespace(name="eth0", speed_mbps=9500 * (number == 1), virtual=number != 1)
        with (
            instead(rank_nics, interface=card, _streams=streams),
            instead(rank_nics.secrets, token_hex="{} bytes".format),
        ):
            link = rank_nics.slowest_link(exchange, seat(rank), NOWHERE, f"n{number}")  # type: ignore[arg-type]
        yield f"link {number}, rank {rank}, {rates}", link, exchange.said, streamed
    listening = [[{"role": "default", "interface": "e", "address": f"10.0.0.{at}", "port": 40}] for at in (1, 2, 3)]
    for rank, local, count, own in product((0, 1), (0, 1), (1, 3), (None, cards[1])):
        log, card = Noted(), own and SimpleNamespace(name="eth0", addresses=own.addresses)
        held: Any = SimpleNamespace(addresses=[Noted(_asdict=listening[0][0])], listen=log.listen, close=log.close)
        exchange = Others(*((listening[:count], None) if rank else (listening[1:count], [[7.0], []])), rank=rank)

        async def walked(plan: Any, given: Any, until: float, log: Any = log) -> Any:
            log.walked([call.to for call in plan.calls], plan.calls == plan.rates, round(until - time.monotonic()))
            return SimpleNamespace(rows=[SimpleNamespace(rate_gbps=each) for each in (None, 3.0, 0.0, 2.5)])

        with (
            instead(listeners, reserve_listeners=lambda *given, h=held, n=log.reserve: n(*given) or h),
            instead(walk, walk=walked),
        ):
            decision = {"token": "t", "seconds": 30.0}
            rates = asyncio.run(
                rank_nics._streams(exchange, replace(seat(rank), local_rank=local), card, "n7", decision)
            )  # type: ignore[arg-type]
        yield f"streams of {rank}, {local} of {count}, {bool(own)}", rates, exchange.said, log.calls


_NET = "/sys/class/net"
_FILES: dict[tuple[str, str], Any] = {
    ("list", _NET): ["lo", "eth0", "ib0", "bond0"], ("list", f"{_NET}/bond0"): ["lower_eth0", "mtu", "upper_x"],
    ("list", f"{_NET}/ib0"): [], ("list", f"{_NET}/eth0"): Missing(""), ("read", f"{_NET}/ib0/type"): " 32\n",
    ("read", f"{_NET}/ib0/dev_port"): "1\n", ("read", f"{_NET}/bond0/type"): "1",
    ("list", f"{_NET}/ib0/device/infiniband"): ["mlx5_0"], ("read", f"{_NET}/eth0/type"): "32",
    ("read", f"{_NET}/eth0/dev_port"): "x", ("link", f"{_NET}/eth0/device/driver"): "../bus/bnxt_en",
    ("link", f"{_NET}/ib0/device/driver"): Denied(""),
}  # fmt: skip
_TIMED = (
    ("a", 8, 5.0), ("a", 1 << 20, 1000.0), ("a", 1 << 30, 2e6), ("a", 1 << 31, 2.1e6), ("b", 1 << 20, 9e6),
    ("b", 8, 3e6), ("c", 8, 0.0), ("d", 8, 30.0), ("d", 9, 3e5), ("e", 8, 1e4),
)  # fmt: skip


def _counted_inputs() -> Rows:
    """The calls during which NIC counters are read, and which rank reads which counters."""
    detection = nic_traffic.TransportDetection(run_of())
    for op, nbytes, us in _TIMED:
        detection.with_transport(replace(ROW, op=op, nbytes=nbytes, time_us=replace(ROW.time_us, mean=us)))
    yield "sizes to count", detection._choose_sizes(), detection.with_transport(ROW).transport
    yield "one node", nic_traffic.TransportDetection(run_of(hosts=("n0", "n0"))).count(None)

    def calls(plan: Any, wanted: Any, exchange: Any, set_phase: Any, look: Callable[[], Any]) -> Iterator[Any]:
        for each in wanted.values():
            yield each, look(), look()

    for backend, rank, quiet in product(("gloo", "nccl"), (0, 1), (False, True)):
        host = answers(
            {question: each for question, each in _FILES.items() if not quiet or "driver" not in question[1]}
        )
        traffic, slept = iter([Traffic({"eth0": Count(5, 6)}), Traffic({"eth0": Count(9, 1 << 20)})]), list[Any]()
        told: list[Any] = [[{"expected": ["eth0"], "below": {}}], [[None, None]], [[None, None]]]
        exchange = Others(*([{"a": {"op": "a", "nbytes": 8, "number": 3}}] if rank else told), rank=rank)
        look = Noted(snapshot=captured("laptop"))
        run = run_of(backend=backend, rank=rank, host=host, exchange=exchange, hosts=("n0", "n1"), look=look)
        run = replace(run, set_phase=slept.append)
        part = nic_traffic.TransportDetection(run)
        with (
            instead(torch.cuda, empty_cache=lambda s=slept: s.append("cache")),
            instead(nccl_debug, run_pass=((), "no log")),
        ):
            if backend == "nccl":
                part.before(None, 9.0)
        slept.append(part.note)
        part._own_names, part._sizes = ["eth0"], {"a": [(8, 0.1)]}
        with (
            instead(nic_traffic, count_traffic=calls),
            instead(nic_traffic.traffic, read=lambda host, traffic=traffic: next(traffic)),
            instead(nic_traffic.time, sleep=slept.append),
        ):
            yield f"counted {backend}, rank {rank}, {quiet}", *part.count(None), exchange.said, slept


class Twice:
    """A device whose copies take these seconds, one after the other, and whose tensors are in host memory."""

    def __init__(self, *seconds: float) -> None:
        self._seconds, self.now, self.made = deque(seconds), 0.0, list[Any]()

    def copy(self) -> None:
        self.now += self._seconds[0]
        if len(self._seconds) > 1:
            self._seconds.popleft()

    def tensor(self, nbytes: int, **how: Any) -> torch.Tensor:
        self.made.append([nbytes, *(str(each) for each in how.values())])
        return torch.full((nbytes,), len(self.made), dtype=torch.uint8)


_SECONDS = ((0.01,), (1.0, 0.5, 0.001), (0.001, 3.0), (0.02, 0.031, 0.02), (0.1, 0.2, 0.4, 0.3), (9.0,))
_SYSTEM = "/sys/devices/system"
_NUMA: dict[tuple[str, str], Any] = {
    ("list", f"{_SYSTEM}/node"): ["node1", "node0", "has_cpu"], ("read", f"{_SYSTEM}/cpu/online"): "0-1",
    ("read", "/proc/cpuinfo"): "model name : x\n", ("read", f"{_SYSTEM}/node/node0/cpulist"): "0",
    ("read", f"{_SYSTEM}/node/node1/cpulist"): "1,5000", ("read", f"{_SYSTEM}/node/node0/distance"): "10 20",
    ("read", f"{_SYSTEM}/node/node1/distance"): "20 10",
}  # fmt: skip
_NUMAS: dict[str, dict[tuple[str, str], Any]] = {
    "two nodes": _NUMA, "no list": {}, "garbled": {**_NUMA, ("read", f"{_SYSTEM}/cpu/online"): "?"},
    "memory only": {**_NUMA, ("read", f"{_SYSTEM}/node/node1/cpulist"): ""},
}  # fmt: skip
_LAYOUTS = ({0: (0,), 1: (1, 2), 4: (3,)}, {7: (0,)})
_TURNS = (
    (0, [2, 2], 2, 1, ""), (1, [2, 2], 2, None, ""), (0, [1, 1], 1, 4, ""), (2, [2, 3], 3, 0, ""),
    (0, [2, 2], 3, 0, copies.TAKEN),
    (1, [8, 8], 4, 0, copies.TAKEN), (0, [2, 2], 2, 1, "out of memory"), (3, [2, 2], 3, 4, ""),
)  # fmt: skip


def _copies_inputs() -> Rows:
    """The order, sizes, rates and NUMA nodes of copies by GPUs and in host memory, with stand-in devices."""
    for seconds in _SECONDS:
        device = Twice(*seconds)
        with instead(copies.time, perf_counter=lambda device=device: device.now):
            yield f"rates of {seconds}", [f"{each:.6g}" for each in copies.rates(device.copy, 10**9, lambda: None)]
    cuda, device, moved = Noted(stream=mock.MagicMock()), Twice(), list[int]()

    def rates(call: Callable[[], object], nbytes: int, synchronise: Callable[[], None]) -> list[float]:
        call()
        synchronise()
        moved.append(nbytes)
        return [float(len(moved))]

    def held() -> list[list[int]]:
        return [[int(each[0]) for each in each] for each in (made.here, made.there)]

    with (
        instead(copies, rates=rates),
        mock.patch.object(copies.torch, "cuda", cuda),
        instead(copies.torch, empty=device.tensor, zeros=device.tensor),
    ):
        made = copies.gpu_buffers(torch.device("cpu"), 5, copies._affinity(0))
        found: list[Any] = [held()]
        for kind, those in copies.host_copies(made):
            found.append([kind, those, held()])
            made.here[0].fill_(60 + len(found))
            made.there[1].fill_(70 + len(found))
        peer = copies.peer_copy(torch.device("cpu"), torch.device("meta"), 9)
    asked = [[name, *map(str, given)] for name, *given in cuda.calls]
    yield "buffers", device.made, found, peer, moved, asked
    with instead(copies.os, sched_getaffinity={1, 0, 9}, sched_setaffinity=None):
        yield "nodes", {name: copies.numa_nodes(answers(each)) for name, each in _NUMAS.items()}
    place = ("read", "/sys/bus/pci/devices/0000:3b:00.0/numa_node")
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    with instead(copies.torch.cuda, get_device_properties=lambda device: properties):
        hosts = (*(answers({place: text}) for text in ("1\n", "-1", "x")), NOWHERE)
        yield "of a GPU", [copies.node_of_gpu("cuda:1", host, {0, 1}) for host in hosts]
    for free, near in product((None, 32 << 20, 2047 << 20, 2048 << 20, 9999 << 20), _LAYOUTS):
        exchange, local, told = Others([["n1", [], {}, "a note", {}]]), 2 if free != 32 << 20 else 1, list[Any]()
        run = run_of(identity=seat(local=local), look=Noted(), exchange=exchange)

        def memory(*given: Any, told: list[Any] = told) -> Iterator[tuple[str, list[float]]]:
            told.append(given)
            yield "torch", [3.0, 1.0, 2.00005]
            yield "memcpy", [5.0]

        with instead(copies, numa_nodes=near, memory_copies=memory, free_bytes=free):
            copies.play(run)
        yield f"host with {free and free >> 20} MiB on {len(near)}", *run.recorder.calls, told


def _turns_inputs() -> Rows:
    """The order in which ranks copy with their GPUs: each alone, to its peers, and all together."""
    gpus = {Gpus: Gpus(tuple(Gpu(number, pci=f"00000000:0{number}:00.0") for number in range(3)), "", (12, 8))}
    for rank, ranks_here, count, near, refusal in _TURNS:
        order, identity = list[Any](), seat(rank, 4, ranks_here[0])
        said = [max(ranks_here), *[None] * 20] if rank else [ranks_here[1:], *[[["n1", [], {}, "", {}]]] * 20]

        def peers(device: Any, peer: Any, nbytes: int, order: list[Any] = order, why: str = refusal) -> list[float]:
            order.append(f"{device} to {peer}, {nbytes}")
            if why:
                raise RuntimeError(f"CUDA error: {why}")
            return [float(len(order))]

        def allocated(*given: Any, order: list[Any] = order) -> Any:
            order.append(f"{given}")
            return given[2]

        def host_copies(kept: Any) -> Iterator[tuple[str, list[float]]]:
            yield from (("h2d", [1.0, 3.0]), ("d2h", [len(kept) / 4]))

        run = run_of(
            identity=identity, device=f"cuda:{identity.local_rank}", exchange=Others(*said, rank=rank),
            look=Noted(snapshot=Snapshot("n0", gpus)), set_phase=order.append,
        )  # fmt: skip
        here = {"numa_nodes": {0: (0,), 1: (1,), 4: (3,)}, "free_bytes": None, "node_of_gpu": near, "by_kind": {}}
        with (
            instead(copies, gpu_identity="0000:0{}:00.0".format, peer_copy=peers, gpu_buffers=allocated, **here),
            instead(copies, host_copies=host_copies, _affinity={0}),
            instead(copies.torch.cuda, set_device=lambda to, order=order: order.append(f"at {to}"), device_count=count),
        ):
            part = copies.Copies(run)
            try:
                rows = part.play() if rank == 0 and not refusal else list(part._turns())
            except ProbeError as error:
                rows = [str(error)]
        yield f"rank {rank} of {ranks_here}, {count} GPUs, near {near}, {refusal}", *rows, order, part.note


_FIRST = (
    [[1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 3.0, 9.0], [0.5, 2.0, 4.0, 9.0]], [[1.0, 2.0, 3.0]],
    [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
)  # fmt: skip


def _collectives_inputs() -> Rows:
    """How the first calls are timed, and what happens before and after a sweep."""
    for rows in _FIRST:
        yield f"first of {rows}", collectives.slowest(rows)
    for rank, ranks in ((0, 1), (0, 2), (1, 3), (2, 3)):
        calls: list[Any] = []
        dist = SimpleNamespace(
            get_rank=lambda rank=rank: rank, get_world_size=lambda ranks=ranks: ranks, isend="isend", irecv="irecv",
            all_reduce=lambda tensor, calls=calls: calls.append(["all_reduce", len(tensor)]),
            P2POp=lambda op, tensor, peer: [op, len(tensor), peer],
            batch_isend_irecv=lambda works, calls=calls: [SimpleNamespace(wait=lambda: calls.append(works))],
        )  # fmt: skip
        clock: Any = SimpleNamespace(now=calls.__len__, synchronise=lambda calls=calls: calls.append("wait"))
        run = run_of(set_phase=calls.append, exchange=Others([[9.0] * 4] * (ranks > 1), rank=rank))
        with (
            mock.patch.object(collectives, "dist", dist),
            instead(collectives, clock_of=lambda device, clock=clock: clock),
        ):
            collectives.first_calls(run, 0.5)
        yield f"calls of rank {rank} of {ranks}", calls, run.exchange.said, *run.recorder.calls
    for transport, hosts, rank in product((True, False), (("n0", "n0"), ("n0", "n1")), (0, 1)):
        log: Any = Noted(count=("counted",))
        log.note = "a note"
        run = run_of(options=replace(run_of().options, transport=transport), hosts=hosts, rank=rank)
        with instead(collectives, TransportDetection=lambda run, log=log: log, sweep=log.sweep):
            collectives.play(run)
        said = [[each for each in call if isinstance(each, str | float)] for call in log.calls]
        told = run.recorder and [run.recorder.calls, "with_transport" in vars(run.recorder)]
        yield f"transport {transport}, {hosts}, rank {rank}", said, told
    yield "share", *(collectives.log_pass_s(60.0, left_s) for left_s in (90.0, 89.0, 91.0))
    skipped = SkippedRow("reduce", None, "refused", "no")
    for outcomes, repeat, rank in product(
        ((["a", skipped], ["b"], [skipped]), (["a"], UsageError("no room"), ["b"]), (["a"], ProbeError("reset"))),
        (0, 1, 2), (0, 1),
    ):  # fmt: skip
        runs, asked_ = iter(outcomes), list[Any]()

        def once(plan: Any, *given: Any, runs: Any = runs, asked: Any = asked_, **named: Any) -> Any:
            asked.append([plan.ops, plan.sizes])
            found = next(runs, [])
            if isinstance(found, Exception):
                raise found
            yield from found

        failing = [("all_reduce", 1 << 16), ("reduce", 8)]
        given = replace(run_of("-b 8 -e 64").options, repeat=repeat)
        exchange = Others(*[failing] * repeat, [], False, rank=rank)
        run = run_of(options=given, rank=rank, exchange=exchange, set_phase=asked_.append)
        if not rank:
            run.recorder.failing = lambda most, failing=failing: failing[:most]
            run.recorder.progress = Noted()
        with (
            instead(collectives.probe, run=once),
            instead(collectives, _look_for_disturbances=None),
            instead(interference, read=None),
        ):
            try:
                collectives.sweep(run)
            except NcclprobeError as ended:
                asked_.append(str(ended))
        told = run.recorder and [run.recorder.calls, run.recorder.progress.calls[:1]]
        yield f"again {outcomes[1]} {repeat} {rank}", asked_, run.exchange.said, told


_FAILURES = (None, RuntimeError("reset\nmore"), TypeError("no such type"), ValueError("no room"))
_CALLED = (("all_reduce", (8, 1 << 20)), ("sendrecv", (64,)), ("all_gather", (2,)), ("reduce_scatter", (4096,)))
_HEARD: tuple[list[Any], ...] = ([[None, ""], [None, "late"]], [[None, "a"], [None, copies.TAKEN]], [[None, ""]])


def _passes_inputs() -> Rows:
    """What processes in which NCCL speaks do, how they fail, what rank 0 hears of them, and what disturbs a sweep."""
    yield "variables", nccl_debug.variables({"A": "1", "NCCL_DEBUG": "WARN"}, Path("/log"))
    for rank, error, room in ((0, None, 1 << 20), *((rank, error, None) for rank in (0, 1) for error in _FAILURES)):
        task = nccl_debug.Task(rank, 2, "n0", 7, "cpu", "float16", "max", _CALLED, 5.0)
        dist, calls = Noted(), list[Any]()
        if error:
            dist.init_process_group = mock.Mock(side_effect=error)

        def noted(view: Any, op: str, calls: list[Any] = calls) -> Callable[[], None]:
            given = [len(view.send), len(view.recv), view.rank, view.ranks, str(view.redop), str(view.recv.dtype)]
            return lambda: calls.append([op, *given])

        probes = [SimpleNamespace(name=op, run=partial(noted, op=op)) for op in OPS]
        with (
            mock.patch.object(nccl_debug, "dist", dist),
            instead(nccl_debug, discover=probes, clock_of=dist, _room=room),
        ):
            try:
                nccl_debug.begin(json.dumps(asdict(task)))
            except SystemExit as ended:
                calls.append(str(ended))
        yield f"pass of rank {rank}, {error!r}, {room}", calls, dist.calls
    for rank, why, others in product((0, 1), ("", copies.TAKEN), _HEARD):
        exchange, asked = Others(4711 if rank else others, rank=rank), list[Any]()
        task_of = lambda *given, asked=asked, why=why: asked.extend(given) or (None, why)  # noqa: E731
        with (
            instead(nccl_debug, run_task=task_of, free_port=4711),
            instead(nccl_debug.own_child, command=lambda name: [name]),
        ):
            told = nccl_debug.run_pass(run_of("-b 8 -e 64 -f 8").plan(), seat(rank), exchange, 9.0)  # type: ignore[arg-type]
        yield f"passes of {rank}, {why[:9]!r}, {others}", told, exchange.said, asked
    before, after = interference.Reading(100.0, 50.0, 0.0, 1.0), interference.Reading(200.0, 140.0, 0.0, 3.0)
    for failing, heat, rank in product((True, False), (interference.Heat(1.0, {0: 0.0}), None), (0, 1)):
        exchange, phases = Others(failing if rank else [["n1", None, None, []]], rank=rank), list[str]()
        run = run_of(rank=rank, exchange=exchange, set_phase=phases.append)
        if not rank:
            run.recorder.failing = lambda most, failing=failing: [("reduce", most)] * failing
        with (
            instead(interference, read=after, heat=interference.Heat(11.0, {0: 5.0}), gpus_now=None),
            instead(collectives.socket, gethostname="n0"),
        ):
            collectives._look_for_disturbances(run, before, heat)
        yield f"disturbed {failing} {bool(heat)} {rank}", exchange.said, run.recorder and run.recorder.calls, phases


_STEPS = [[1.0, 5.0, 2.0], [3.0, 1.0, 2.5], [2.0, 2.0, 4.0], [2.0, 6.0, 1.0], [9.0, 0.1, 2.0]]
_CALLS: tuple[list[list[float]], ...] = (
    [[1.0, 2.0, 4.0], [2.0, 2.0, 1.0], [3.0, 1.0, 1.0], [1.0, 2.0, 2.0], []], [[]] * 5, [[1.0]] * 4 + [[]]
)  # fmt: skip
_ROOMS: tuple[tuple[int, str, int | None, list[Any]], ...] = (
    (4, "cpu", 1000, [10, None, 30]), (5, "cpu", 1000, [900, 400, 999]), (4, "cuda:1", 1000, []),
    (4, "cpu", None, [None, 7]), (4, "cpu", None, []),
)  # fmt: skip


def _ladders_inputs() -> Rows:
    """The rungs of a ladder, the memory that they need, and how often their steps are run."""
    sizes = ladder.LadderSizes(1 << 20, 1 << 16, 5.0)
    for calls in _CALLS:
        yield f"row of {calls}", ladder.rung_row(Rung("pair", ((0, 1), (2, 3), (4,))), sizes, _STEPS, calls)
    yield "row of one", ladder.rung_row(Rung("rank", ((0,), (1,))), sizes, _STEPS[:2], [[], []])
    rooms = (None, 1 << 20, (100 << 20) + 4000, 99 << 30)
    for backend, room, argv in product(("nccl", "gloo"), rooms, ("-e 1M", "-b 8 -e 2G")):
        noted: list[Any] = []
        with instead(ladder, climb=lambda *given, noted=noted: noted.extend(given[1:4]) or (), room_of=room):
            ladder.play(run_of(argv, backend=backend, exchange=Others([None] * 3)))
        yield f"{backend} with {room}, {argv}", [each.name for each in noted[0]], *noted[1:]
    for slow_s in (0.001, 0.3, 0.5, 2.0, 30.0):
        bench: Any = Noted(slowest=slow_s, timed=slow_s / 2, batch=slow_s)
        rungs = Rung("rank", ((0,), (1,))), Rung("pair", ((0,), (1, 2)))
        parts: Any = [SimpleNamespace(rung=each, play=each.name, call=None) for each in rungs]
        made = [ladder.time_steps(bench, parts, 2.0), *(ladder.time_calls(bench, part, 2.0) for part in parts)]
        few = bench.calls[:: len(bench.calls) // 9 + 1]
        yield f"{slow_s} s a step", [len(each) for each in made], *few
    for (ranks, device, free, told), rank in product(_ROOMS, (0, 1)):
        exchange, plan = (
            Others(5 if rank else told, rank=rank),
            replace(run_of().plan(), ranks=ranks, nodes=2, device=device))  # fmt: skip
        with instead(training_part, free_bytes=free):
            least = training_part.room_of(plan, NOWHERE, exchange)
        yield f"room of {ranks} on {device}, {free}, {told}, rank {rank}", least, exchange.said


def _pairs_inputs() -> Rows:
    """What a rank starts the round-robin with, and whether its group can be closed afterwards."""
    infos = [{"gpu": None, "own": f"eth{number}"} for number in range(4)]
    for argv, rank, lost, intact in product(("-b 16", "-b 16 -e 1M"), (0, 1), (True, False), (True, False)):
        backend, seen = "gloo" if lost else "nccl", list[Any]()
        endpoint: Any = SimpleNamespace(lost=lost, transfers=4)
        recorder = None if rank else Noted(expected_GBps=7.5)
        exchange = Others(("n0",) * 4 if rank else infos[1:], rank=rank)
        watchdog = Noted(exclude=["a loss"])
        run = run_of(argv, pairs.parse, backend, rank=rank, exchange=exchange, watchdog=watchdog, recorder=recorder)

        def search(context: Any, placement: Any, *given: Any, seen: list[Any] = seen, intact: bool = intact) -> Any:
            given[2]([3])
            seen.extend([context.sizes, context.deadline_s, context.transfers, given[1], placement.hosts])
            return SimpleNamespace(run=lambda rounds: seen.append(rounds) or intact)

        def served(context: Any, seen: list[Any] = seen, intact: bool = intact) -> bool:
            seen.extend([context.sizes, context.deadline_s])
            return intact

        with (
            instead(pairs_part, PairEndpoint=lambda *given, own=endpoint: own, RoundRobin=search, run_worker=served),
            instead(rank_nics, rank_info=infos[0]),
        ):
            closes = pairs_part.play(run)
        told = recorder and recorder.calls
        yield f"{argv} over {backend}, rank {rank}, {intact}", closes, seen, watchdog.tolerant, watchdog.calls, told


FUNCTIONS = in_all_words({
    "nics": _nics_inputs, "counted": _counted_inputs, "copies-of-hosts": _copies_inputs,
    "copies-of-gpus": _turns_inputs, "sweeps": _collectives_inputs, "ladders": _ladders_inputs,
    "pairs-of-ranks": _pairs_inputs, "passes": _passes_inputs,
})  # fmt: skip
