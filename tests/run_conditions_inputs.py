"""What judges and disturbs a run, and what its ranks report about themselves: rows of `FUNCTIONS`."""

import json
from collections.abc import Mapping
from itertools import product
from typing import Any
from unittest import mock

from conftest import answers

from ncclprobe.commands import bandwidth, pairs, workload
from ncclprobe.expect import baselines, sockets
from ncclprobe.expect.expected import Expecting
from ncclprobe.facts.cpu import Cpus, NumaNode
from ncclprobe.facts.machine import Dmi, Machine
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.run.samples import Participants
from ncclprobe.model.errors import Missing
from ncclprobe.model.measurement import Band, Expectation
from ncclprobe.model.pair_results import PAIRS
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.probes import buffers
from ncclprobe.probes.nccl_library import LoadedNccl
from ncclprobe.session.measure import collectives, expectations, interference, rank_nics
from ncclprobe.session.measure.interference import Heat, Reading
from ncclprobe.session.ranks.identity import RankInfo, RunConfig
from tests.one_rank import NOWHERE, Noted, Others, Rows, captured, in_all_words, instead, run_of


def _fingerprints_inputs() -> Rows:
    """The fingerprint of a machine, and what is noted about baselines of this machine and of others."""
    gpus = tuple(Gpu(number, name="H100" if number != 1 else "A100") for number in range(3))
    facts: dict[type, Any] = {
        Machine: Machine(Dmi("Dell", "XE9680")), Gpus: Gpus(gpus, "570.1", (12, 8)),
        Cpus: Cpus((0, 1, 4), "Xeon", (NumaNode(0, (0, 1), (10,)),))}  # fmt: skip
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
_JUDGED = Expectation(1.0, 0.5, "GB/s", "s", "w", "k")
_UNJUDGED = replace(_JUDGED, worst="unjudged")
_OF_ROWS = {
    "none": (), "one": (Band("all_reduce", 1 << 10, 4 << 20, _JUDGED),), "pairs": (Band(PAIRS, 8, 1 << 30, _JUDGED),),
    "unjudged": (Band("all_reduce", 8, 1 << 30, _UNJUDGED),), "two": (Band("all_reduce", 64 << 20, 64 << 20, _JUDGED),
    Band("broadcast", 1 << 10, (4 << 20) - 1, _JUDGED)),
}  # fmt: skip


def _judged_by_inputs() -> Rows:
    """What a run is judged by when no file is given, and which sizes are worth measuring."""
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
        ("rtx4090-2", "", bandwidth.parse, ("n",) * 2), ("rtx4090-2", "", bandwidth.parse, ("n",) * 8),
        ("hgx-h100", "-e 1G", pairs.parse, ("n",) * 8), ("hgx-h100", "", pairs.parse, ("n",) * 8),
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
    ["n1", [1.0, 1.0, 0.0, 0.0], [101.0, 1.0, 40.0, 1.0], []])  # fmt: skip


def _disturbances_inputs() -> Rows:
    """Which busy processors, hot GPUs, GPU errors and settings are reported to disturb a run."""
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
        ("n0", before, worked), ("n3", before, worked), ("n3", None, None),
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
    "NCCL_ALGO": "Ring," * 20, "TORCH_DISTRIBUTED_DEBUG": "detail", "NCCL_BUFFSIZE": "0x400000",
    "NCCL_IB_HCA": "mlx5_0", "GLOO_DEVICE_TRANSPORT": "TCP", "TORCH_NCCL_BLOCKING_WAIT": "1", "NCCL_OUR_SECRET": "x",
    "PATH_OF_OURS": "x",
}  # fmt: skip


def _infos_inputs() -> Rows:
    """What a rank reports about itself, and what rank 0 records about all ranks."""
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
        "gloo": [over_gloo] * 2, "other NCCL": [second] * 2, "unlike": [first, replace(first, settings={})],
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
    """The plan for the collectives of a run, and the memory that its sizes need."""
    for argv, backend, sizes in _ASKED:
        run = run_of(argv, backend=backend, sizes=sizes, rank=3)
        room = [run.options.without_room(2, free, "on n0") for free in (None, 1 << 20, 4 << 20, 1 << 30)]
        yield f"{backend} {argv} {sizes}", run.plan(), run.options.largest_asked, *room
    for argv in ("-b 16 -e 1M", "-b 16"):
        yield f"pairs {argv}", pairs.parse(argv.split()).largest_asked


FUNCTIONS = in_all_words({
    "fingerprints": _fingerprints_inputs, "judged-by": _judged_by_inputs, "disturbances": _disturbances_inputs,
    "infos": _infos_inputs, "plans-of-runs": _asked_inputs,
})  # fmt: skip
