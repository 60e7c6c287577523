"""What ranks measure and tell rank 0, played in this process without a store: rows of `FUNCTIONS`."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from conftest import answers

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import bandwidth, pairs, workload
from ncclprobe.expect import baselines, sockets
from ncclprobe.expect.expected import Expecting
from ncclprobe.facts.cpu import Cpus, NumaNode
from ncclprobe.facts.machine import Dmi, Machine
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.run.samples import Participants
from ncclprobe.facts.traffic import Count, Traffic
from ncclprobe.host.capture import load
from ncclprobe.model.errors import Denied, Missing, NcclprobeError, ProbeError, UsageError
from ncclprobe.model.measurement import Band, Expectation, SkippedRow
from ncclprobe.model.pair_results import PAIRS
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.training import Rung
from ncclprobe.model.values import replace
from ncclprobe.probes import buffers
from ncclprobe.probes.nccl_library import LoadedNccl
from ncclprobe.session.measure import collectives, copies, expectations, interference, ladder, nic_traffic, rank_nics
from ncclprobe.session.measure import pairs as pairs_part
from ncclprobe.session.measure import training as training_part
from ncclprobe.session.measure.interference import Heat, Reading
from ncclprobe.session.ranks.identity import RankInfo, RunConfig
from tests.command_inputs import CAPTURES
from tests.one_rank import NOWHERE, Noted, Others, Rows, captured, in_all_words, instead, run_of, seat


def _fingerprints_inputs() -> Rows:
    """The words for a machine, and what a baseline of it or of another one is good for."""
    gpus = tuple(Gpu(number, name="H100" if number != 1 else "A100") for number in range(3))
    facts: dict[type, Any] = {
        Machine: Machine(Dmi("Dell", "XE9680")),
        Gpus: Gpus(gpus, "570.1", (12, 8)),
        Cpus: Cpus((0, 1, 4), "Xeon", (NumaNode(0, (0, 1), (10,)),)),
    }
    who = Participants(
        "torchrun", 2, ("n0", "n1"), "gloo", {"torch": "2.9", "nccl": "2.28.9", "cuda": None},
        settings={"NCCL_PROTO": "LL", "GLOO_X": "1"},
    )  # fmt: skip
    made = {
        "all": facts, "none": {}, "no product": {Machine: replace(facts[Machine], dmi=Dmi("Dell"))},
        "product without vendor": {Machine: replace(facts[Machine], dmi=Dmi(product="XE9680"))},
        "instance": {Machine: replace(facts[Machine], instance_type="p5.48xlarge")},
        "instance alone": {Machine: replace(facts[Machine], dmi=Dmi(), instance_type="p5.48xlarge")},
        "no driver": {Gpus: Gpus(gpus[:1], "", (12, 8))}, "hgx-h100": captured("hgx-h100").facts,
        "guest": captured("guest-rxe-root").facts,
    }  # fmt: skip
    for name, some in made.items():
        alike = [expectations.fingerprint_of(some, replace(who, backend=backend)) for backend in ("gloo", "nccl")]
        yield name, *alike, expectations.fingerprint_of(some, Participants("self", 1, ("n0",)))
    mine = expectations.fingerprint_of(facts, replace(who, backend="nccl"))
    same = baselines.Print(mine.machine, mine.topology, mine.software)
    other = baselines.Print(
        {"product": "A", "gpu": "B", "cpu": "C"}, "0123", {"torch": "1", "nccl": "2", "driver": "3"}
    )
    newer = baselines.Print(mine.machine, mine.topology, {**mine.software, "torch": "3", "driver": "4"})
    quite = baselines.Print(mine.machine, None, dict.fromkeys(mine.software, "x"))
    more = baselines.Print({"gpu": mine.machine["gpu"]}, "77", dict.fromkeys("abcd", "1"))
    row = baselines.Row("all_reduce", 8, "in", "queued", "nccl", "float32", "sum", 2, 2, 9.0, 0.1, 0.2, 3)
    sites = {
        "one alike": {"a": same}, "one other": {"a": other}, "two others": {"a": other, "b": other},
        "nameless": {"a": None}, "two nameless": {"a": None, "b": None}, "nameless and other": {"a": None, "b": other},
        "nameless and alike": {"a": None, "b": same}, "nothing in common": {"a": baselines.Print()},
        "old and new": {"a": newer, "b": same}, "new and old": {"b": same, "a": newer}, "all else": {"a": quite},
        "not both": {"a": more}, "none": {},
    }  # fmt: skip
    for name, prints in sites.items():
        if prints:
            found = {
                key: baselines.Site("ncclprobe", f"2026-0{1 + (key == 'b')}", each, [], [row])
                for key, each in prints.items()
            }
            recorder: Any = Noted()
            expectations.compare_with(recorder, found, "site.json", mine)
            yield f"baseline: {name}", *recorder.calls
    for path in (None, "site.json"):
        recorder = Noted()
        recorder.participants = who
        site = baselines.Site("ncclprobe", "2026", same, [], [])
        with mock.patch.object(expectations, "load", lambda path, site=site: {path: site}):
            expectations.record_fingerprint(recorder, path, Snapshot("n0", facts))
        yield f"recorded with {path}", *recorder.calls


LINK = sockets.SocketLink(10.0, "eth0 of n1", "reported")


LINK = sockets.SocketLink(10.0, "eth0 of n1", "reported")
_JUDGED = Expectation(1.0, 0.5, "GB/s", "s", "w", "k")
_UNJUDGED = replace(_JUDGED, worst="unjudged")
_OF_ROWS = {
    "none": (), "one": (Band("all_reduce", 1 << 10, 4 << 20, _JUDGED),), "pairs": (Band(PAIRS, 8, 1 << 30, _JUDGED),),
    "unjudged": (Band("all_reduce", 8, 1 << 30, _UNJUDGED),), "two": (Band("all_reduce", 64 << 20, 64 << 20, _JUDGED),
    Band("broadcast", 1 << 10, (4 << 20) - 1, _JUDGED)),
}  # fmt: skip


def _judged_by_inputs() -> Rows:
    """What a run is judged by without a file, and the sizes that are worth measuring."""
    runs = {
        "gloo of two nodes": run_of("-b 8 -e 64M"),
        "gloo with -f": run_of("-b 3M -e 9M -f 3 --op all_reduce,broadcast"),
        "gloo of bytes": run_of("-b 1M -e 1M --dtype bfloat16"), "gloo of one node": run_of(nodes=1),
        "gloo of three nodes, nobody known": run_of("-e 4M", nodes=3, hosts=()),
        "gloo of nobody": run_of(exchange=None), "pairs over gloo": run_of("", pairs.parse),
        "steps over gloo": run_of("ddp", workload.parse), "a file": run_of("--expect /dev/null"),
        "nccl, rank 1": run_of(backend="nccl", rank=1), "nccl, no node known": run_of(backend="nccl",
        exchange=Others([None] * 3)),
    }  # fmt: skip
    asked: list[Any] = []
    for name, run in runs.items():
        with instead(
            rank_nics, slowest_link=lambda exchange, *who: asked.append(who[2]) or (LINK if exchange else None)
        ):
            yield name, expectations.expecting(run), asked[-1:]
    for capture, argv, parse, hosts in (
        ("hgx-h100", "-b 8 -e 1G --op all_reduce,all_to_all", bandwidth.parse, ("n",) * 8),
        ("rtx4090-2", "", bandwidth.parse, ("n",) * 2),
        ("rtx4090-2", "", bandwidth.parse, ("n",) * 8), ("hgx-h100", "-e 1G", pairs.parse, ("n",) * 8),
        ("hgx-h100", "", pairs.parse, ("n",) * 8),
        ("hgx-h100", "-e 1G", pairs.parse, ("n",) * 4 + ("m",) * 4),
    ):  # fmt: skip
        exchange = Others([None] * (len(hosts) - 1))
        run = run_of(
            argv, parse, "nccl", len({*hosts}), hosts=hosts, exchange=exchange, look=Noted(snapshot=captured(capture))
        )
        found = expectations.expecting(run)
        few = [(band.op, band.low_bytes, band.expectation) for band in found.bands[:: len(found.bands) // 8 + 1]]
        yield f"{capture} of {len(hosts)}, {argv}", len(found.bands), few, found.note, found.node_bands[:1]
    found = Expecting((Band("a", 8, 8, _JUDGED),), "a note", (Band("b", 8, 8, _JUDGED),))
    others: Mapping[str, dict[str, Any]] = {
        "collectives": {}, "ladder": {"options": replace(run_of().options, what=("ladder",))}, "rank 1": {"rank": 1},
        "look": {"look": Noted(snapshot=Snapshot("n0", {}))},
    }  # fmt: skip
    for name, changes in others.items():
        run = run_of(**changes)
        with instead(expectations, expecting=found, record_fingerprint=lambda *given: given[0].record(*given[1:])):
            yield f"learned: {name}", expectations.learn(run) == found, run.recorder and run.recorder.calls
    sizes = (8, 1 << 10, 4 << 20, 64 << 20, 1 << 30)
    for (name, these), backend in product(_OF_ROWS.items(), ("nccl", "gloo")):
        yield f"sizes: {name} over {backend}", expectations.judgeable(sizes, these, backend)


_STAT = "cpu  100 20 300 4000 50 6 7"
_STATS = (f"{_STAT} 80", f"{_STAT} 80 9 x\ncpu0 1", _STAT, f"{_STAT} x", f"{_STAT} 8 9 9", "cpu0 1 2 3 4 5 6 7 8 9", "")
_BUSY = (
    (0, 9, 9, 0), (-1, 9, 9, 0), (100, 25, 0, 0), (100, 24.9, 0, 0), (100, 30, 20, 10), (100, 30, 20, 50),
    (100, 0.9, 30, 0),
    (100, 1, 30, 0), (100, 30, 0.9, 0), (100, 30, 1, 0), (100, 40, -5, 0), (100, 10, 15, 0), (100, 80, 0, 80),
)  # fmt: skip
_ERRORS: tuple[Any, ...] = (Absent("no NVML"), (), ((3, 79), (0, 31), (3, 79)), ((0, 1), (1, 2), (2, 3), (3, 4)))
_MERGED: tuple[list[Any], ...] = (
    ["n0", [1.0, 1.0, 0.0, 0.0], [101.0, 61.0, 0.0, 1.0], [{"what": "hot", "left": 0.25}]],
    ["n0", None, None, [{"what": "hot", "left": 0.25}]],
    ["n1", [1.0, 1.0, 0.0, 0.0], [101.0, 1.0, 40.0, 1.0], []],
)


def _disturbances_inputs() -> Rows:
    """Processors, hot GPUs, errors of GPUs and settings that spoil a run."""
    for text in _STATS:
        yield f"stat {text!r}", interference.parse(text, 2.5)
    before = Reading(1000.0, 500.0, 20.0, 10.0)
    for total, busy, steal, own in _BUSY:
        after = Reading(1000.0 + total, 500.0 + busy, 20.0 + steal, 99.0)
        found = interference.processor_disturbance("n0", before, after, (own / 2, own / 2))
        yield f"{total} s, busy {busy}, stolen {steal}, own {own}", found
    worked, idle = Reading(1100.0, 590.0, 20.0, 30.0), Reading(1100.0, 501.0, 20.0, 10.5)
    readings = [
        ("n1", before, None), ("n0", before, worked), ("n2", before, idle), ("n1", None, worked),
        ("n0", before, worked),
        ("n3", before, worked), ("n3", None, None),
    ]  # fmt: skip
    yield "hosts", *interference.host_disturbances(readings)
    hot = (Gpu(0, throttle=("hw-slowdown", "gpu-idle", "hw-thermal-slowdown")), Gpu(1), Gpu(4, throttle=("gpu-idle",)))
    spent = json.dumps({"referenceTime": 9, "violationTime": 2_500_000_000})
    told = {("nvml", "nvmlDeviceGetViolationStatus", 0, 1): spent, ("nvml", "nvmlDeviceGetCount"): "2"}
    told = {**told, ("nvml", "nvmlDeviceGetViolationStatus", 1, 1): Missing("Not Supported")}
    with instead(interference.time, monotonic=7.0):
        yield "heat", interference.heat(answers(told)), interference.heat(NOWHERE)
    cool, gpus = Heat(100.0, {0: 7.0, 1: 3.0, 4: 0.0}), Gpus(hot, "", (12, 8))
    for now in (Heat(120.0, {0: 7.0, 1: 4.0, 4: 0.9}), Heat(100.0, {1: 3.5, 5: 9.0}), Heat(110.0, {0: 27.0, 4: 5.0})):
        yield f"heat {now}", *(interference.of_gpus("n0", cool, now, each) for each in (gpus, None))
    for errors, backend in product(_ERRORS, ("nccl", "gloo", None)):
        with instead(interference, xids=errors):
            yield f"errors {errors} over {backend}", interference.xids_behind(NOWHERE, backend)
    for errors, heard, look, rank in product(_ERRORS[:3], (True, False), (None, Noted()), (0, 1)):
        run = run_of(look=look, rank=rank, exchange=Others([None, ["n1", [[5, 94]]], None], rank=rank))
        with instead(interference, xids=errors), instead(interference.socket, gethostname="n0"):
            interference.tell_xids(run, heard=heard)
        told = run.recorder and run.recorder.calls
        yield f"rank {rank}, {errors}, {heard}, {bool(look)}", run.exchange.said, told
    settings: list[dict[str, str]] = [
        {"NCCL_DEBUG": "TRACE", "X": "1"}, {}, {"NCCL_DEBUG": "TRACE"}, {"NCCL_DEBUG": "INFO"},
    ]  # fmt: skip
    yield "settings", *interference.setting_disturbances(settings)
    debug, both = "# of the site\nNCCL_DEBUG=TRACE\n", {"/job.conf": "NCCL_DEBUG=WARN\n"}
    for variables, files in (
        ({}, {"/etc/nccl.conf": debug}), ({"NCCL_DEBUG": "WARN"}, {"/etc/nccl.conf": debug}),
        ({"NCCL_DEBUG": ""}, {"/etc/nccl.conf": debug}),
        ({"NCCL_CONF_FILE": "/job.conf"}, {**both, "/etc/nccl.conf": debug}),
        ({"NCCL_DEBUG_SUBSYS": "ALL"}, {"/etc/nccl.conf": "NCCL_DEBUG=INFO\n"}),
        ({}, {"/etc/nccl.conf": "TORCH_DISTRIBUTED_DEBUG=DETAIL\nCUDA_LAUNCH_BLOCKING=1\n"}),
        ({}, {"/etc/nccl.conf": "NCCL_DEBUG=trace \n"}),
        ({}, {"/etc/nccl.conf": "NCCL_CHECK_MODE=debug_local\nNCCL_CHECK_POINTERS=1\n"}),
        ({"NCCL_DEBUG": "abort", "NCCL_DEBUG_SUBSYS": "init,all"}, {}), ({"NCCL_DEBUG_SUBSYS": "ALL"}, {}),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT"}, {}), ({"CUDA_LAUNCH_BLOCKING": "0"}, {}),
        ({"CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "detail", "TORCH_NCCL_BLOCKING_WAIT": "True"}, {}),
        ({"CUDA_LAUNCH_BLOCKING": "", "TORCH_DISTRIBUTED_DEBUG": "INFO", "NCCL_CHECK_MODE": "DEBUG_GLOBAL"}, {}),
    ):  # fmt: skip
        known = {path: Missing("") for path in ("/etc/nccl.conf", "/root/.nccl.conf")} | files
        host = answers({("home",): Missing(""), **{("conf", path): text for path, text in known.items()}})
        for backend in ("nccl", "gloo"):
            found = interference.falsifying(backend, variables, host, (2, 28, 9))
            yield f"falsifying {variables} {files} {backend}", found
    yield "names", *(interference.named(ranks, 4) for ranks in ([3], [1, 3], [0, 1, 2, 3])), interference.named([0], 1)
    names = Reading.__struct_fields__
    merged = [
        [host, *(two and dict(zip(names, two, strict=True)) for two in both), each] for host, *both, each in _MERGED
    ]
    yield "merged", *collectives.merge_disturbances(merged)


_VARIABLES = {
    "NCCL_PROTO": "LL", "NCCL_DEBUG": "TRACE", "NCCL_HOSTID": "h7", "GLOO_SOCKET_IFNAME": "eth0",
    "NCCL_ALGO": "Ring," * 20,
    "TORCH_DISTRIBUTED_DEBUG": "detail", "NCCL_BUFFSIZE": "0x400000", "NCCL_IB_HCA": "mlx5_0",
    "GLOO_DEVICE_TRANSPORT": "TCP",
    "TORCH_NCCL_BLOCKING_WAIT": "1", "NCCL_OUR_SECRET": "x", "PATH_OF_OURS": "x",
}  # fmt: skip


def _infos_inputs() -> Rows:
    """What a rank reports of itself, and what rank 0 records of all ranks."""
    loaded, free_bytes = LoadedNccl((2, 28, 9), "/lib/nccl", (2, 27, 5)), (2 << 30, 4 << 30, None)
    for backend, argv, free, nccl in product(
        ("gloo", "nccl"), ("", "--graph", "-e 2G", "-e 1G"), free_bytes, (loaded, None)
    ):
        if argv and (not nccl or not free):
            continue
        options = bandwidth.parse(argv.split())
        own = {"gpu_identity": "0000:{}:00.0".format, "gpu_instance": "MIG-{}".format, "usable_gpus": 8}
        known = {"torch": "2.9", "nccl": nccl and str(nccl)}
        with (
            mock.patch.dict("os.environ", _VARIABLES, clear=True),
            instead(buffers, free_bytes=free),
            instead(interference, versions=known, **own),
            instead(interference.nccl_library, loaded=nccl),
            instead(interference.os, getpid=77),
        ):
            found = interference.rank_info(options, "n0", NOWHERE, backend, 1, 2, "a note")
        yield f"{backend} {argv} {free} {nccl}", replace(found, plan=0), found.plan == options.digest
    given = {"NCCL_PROTO": "LL", "NCCL_SOCKET_IFNAME": "eth0", "TORCH_NCCL_BLOCKING_WAIT": "1", "NCCL_TOPO_FILE": "/x"}
    first = RankInfo("n0", 7, {"torch": "2.9", "nccl": "2.28.9"}, "nccl", "g0", pid=10, settings=given)
    first = replace(first, falsifying={"NCCL_DEBUG": "TRACE"})
    second = replace(first, pid=11, gpu="g1", other_nccl="NCCL 2", settings={}, falsifying={})
    infos = [first, second, replace(first, host="n1", pid=10, gpu=None, other_nccl="NCCL 3")]
    over_gloo = replace(first, versions={"torch": "2.9", "nccl": None}, backend="gloo", gpu=None)
    together = {

        "four": [*infos, replace(first, host="n1", pid=12, other_nccl="NCCL 2")], "one": infos[:1],
        "gloo": [over_gloo] * 2,
        "other NCCL": [second] * 2, "unlike": [first, replace(first, settings={})],
    }  # fmt: skip
    for name, these in together.items():
        recorder: Any = Noted()
        differ = interference.record_participants(
            recorder, "self", these, RunConfig("nccl", len(these), note="ranks share")
        )
        yield f"recorded: {name}", differ, *recorder.calls, [each.device for each in these]


_ASKED = (
    ("", "gloo", ()), ("", "nccl", ()), ("-e 1M", "nccl", (8, 16)), ("-b 1G", "gloo", ()), ("-b 256M", "gloo", ()),
    ("--graph", "nccl", ()), ("--mode blocking --budget 3 --phase-timeout 50 -e 4M", "nccl", ()),
    ("-n 3 -w 2 --batches 7 --dtype float16 --redop max --op reduce,all_gather", "nccl", ()),
)  # fmt: skip


def _asked_inputs() -> Rows:
    """The plan of a run's collectives, and the room that its sizes need."""
    for argv, backend, sizes in _ASKED:
        run = run_of(argv, backend=backend, sizes=sizes, rank=3)
        room = [run.options.without_room(2, free, "on n0") for free in (None, 1 << 20, 4 << 20, 1 << 30)]
        yield f"{backend} {argv} {sizes}", run.plan(), run.options.largest_asked, *room
    for argv in ("-b 16 -e 1M", "-b 16"):
        yield f"pairs {argv}", pairs.parse(argv.split()).largest_asked


_ADDRESSES = [[], ["fd00::2", "10.0.0.3", "10.0.0.4"], ["fe80::1%eth0"], ["fd00::2", "fd00::1"], ["10.1.0.1%x"]]
_NODE = {"nics": ["m0", "m1"], "near": {"g0": ["m1", "m0"], "g1": ["m1", "m0"], "g2": ["m9"], "g3": []}}
_CARDS: list[dict[str, Any]] = [
    {"gpu": "g0"}, {"gpu": "g1"}, {"gpu": "g0", "own": "eth1"}, {"gpu": "g2", "node": _NODE},
    {"gpu": None, "own": "eth0"},
    {"gpu": "g0", "node": _NODE},
]  # fmt: skip
_INTERFACES = ([["e1", "e0"], ["e0"]], [["e0"], []], [["e0"], None], [[f"e{n}" for n in range(9)], ["e1"]])
_LINKS: tuple[list[Any], ...] = (
    [None] * 4, [{"node": "n0", "interface": "e0", "gbps": 9.0, "virtual": False}, None] * 2,
    [{"node": "n1", "interface": "e1", "gbps": None, "virtual": True}] * 3,
)  # fmt: skip
_STREAMED = ((0, [[3.0, 1.0], [], [2.0, 8.0]]), (0, None), (1, None), (2, [[1.0], [2.0], [3.0]]))


def _nics_inputs() -> Rows:
    """The interfaces and ports that carry a rank's bytes, and the slowest link between nodes."""
    for name in ("hgx-h100", "guest-rxe-root", "laptop", "aws-p4d", "one-gpu"):
        node, host = captured(name), load(CAPTURES / f"{name}.jsonl")
        yield f"nccl on {name}", nic_traffic.nccl_devices(node), rank_nics.snapshot_nics(node)
        for ifname in ("", "lo", "eth0") if name in ("one-gpu", "laptop") else ():
            with instead(rank_nics.socket, gethostname="localhost"):
                found = rank_nics.interface(host, {"GLOO_SOCKET_IFNAME": ifname})
            info = rank_nics.interface_info(found, "n7")
            yield f"gloo on {name} by {ifname!r}", found and found.name, found and rank_nics._address(found), info
    cards: Any = [SimpleNamespace(addresses=[SimpleNamespace(address=each) for each in those]) for those in _ADDRESSES]
    looks = (None, Noted(snapshot=captured("laptop")))
    for own, ifname in product((SimpleNamespace(name="eth0"), None), ("ib0,=eth3", "")):
        with instead(rank_nics, interface=own), mock.patch.dict("os.environ", {"GLOO_SOCKET_IFNAME": ifname}):
            told = [rank_nics.rank_info(to, NOWHERE, "g0", look) for to in ("gloo", "nccl") for look in looks]  # type: ignore[arg-type]
            names = nic_traffic.gloo_interfaces(NOWHERE)
        yield f"own {bool(own)}, {ifname}", told, names, [rank_nics._address(each) for each in cards]
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
    ("b", 8, 3e6),
    ("c", 8, 0.0), ("d", 8, 30.0), ("d", 9, 3e5), ("e", 8, 1e4),
)  # fmt: skip


def _counted_inputs() -> Rows:
    """The calls for which NICs are counted, and who reads which counters."""
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
        traffic, slept = iter([Traffic({"eth0": Count(5, 6)}), Traffic({"eth0": Count(9, 1 << 20)})]), list[float]()
        told: list[Any] = [[{"expected": ["eth0"], "below": {}}], [[None, None]], [[None, None]]]
        exchange = Others(*([{"a": {"op": "a", "nbytes": 8, "number": 3}}] if rank else told), rank=rank)
        look = Noted(snapshot=captured("laptop"))
        run = run_of(backend=backend, rank=rank, host=host, exchange=exchange, hosts=("n0", "n1"), look=look)
        part = nic_traffic.TransportDetection(run)
        part._own_names, part._sizes = ["eth0"], {"a": [(8, 0.1)]}
        with (
            instead(nic_traffic, count_traffic=calls),
            instead(nic_traffic.traffic, read=lambda host, traffic=traffic: next(traffic)),
            instead(nic_traffic.time, sleep=slept.append),
        ):
            yield f"counted {backend}, rank {rank}, {quiet}", *part.count(None), exchange.said, slept


class Twice:
    """A device whose copies take these seconds, one after the other, and whose tensors are the host's."""

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
    """Copies of GPUs and of a host's memory on devices of this test: their order, sizes, rates and places."""
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
    """The order in which ranks copy with their GPUs, each alone, to its peers, and all together."""
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
    """The first calls, and what is done before and after a sweep."""
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
        run = run_of(options=given, rank=rank, exchange=Others(*[failing] * repeat, [], False, rank=rank))
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


_STEPS = [[1.0, 5.0, 2.0], [3.0, 1.0, 2.5], [2.0, 2.0, 4.0], [2.0, 6.0, 1.0], [9.0, 0.1, 2.0]]
_CALLS: tuple[list[list[float]], ...] = (
    [[1.0, 2.0, 4.0], [2.0, 2.0, 1.0], [3.0, 1.0, 1.0], [1.0, 2.0, 2.0], []], [[]] * 5, [[1.0]] * 4 + [[]]
)  # fmt: skip
_ROOMS: tuple[tuple[int, str, int | None, list[Any]], ...] = (
    (4, "cpu", 1000, [10, None, 30]), (5, "cpu", 1000, [900, 400, 999]), (4, "cuda:1", 1000, []),
    (4, "cpu", None, [None, 7]),
    (4, "cpu", None, []),
)  # fmt: skip


def _ladders_inputs() -> Rows:
    """The rungs of a ladder, the room for them, and how often their steps are played."""
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
            replace(run_of().plan(), ranks=ranks, nodes=2, device=device),
        )
        with instead(training_part, free_bytes=free):
            least = training_part.room_of(plan, NOWHERE, exchange)
        yield f"room of {ranks} on {device}, {free}, {told}, rank {rank}", least, exchange.said


def _pairs_inputs() -> Rows:
    """What a rank begins the round-robin with, and whether its group can be closed afterwards."""
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


FUNCTIONS = in_all_words(
    {
        "fingerprints": _fingerprints_inputs,
        "judged-by": _judged_by_inputs,
        "disturbances": _disturbances_inputs,
        "infos": _infos_inputs,
        "plans-of-runs": _asked_inputs,
        "nics": _nics_inputs,
        "counted": _counted_inputs,
        "copies-of-hosts": _copies_inputs,
        "copies-of-gpus": _turns_inputs,
        "sweeps": _collectives_inputs,
        "ladders": _ladders_inputs,
        "pairs-of-ranks": _pairs_inputs,
    }
)
