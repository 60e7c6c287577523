"""The functions whose answers are kept, each with made-up input: planted faults, launchers' variables, plans, patterns.

To add one, add a row to a function of `FUNCTIONS`, run `scripts/golden.py`, and read what it kept.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import fake_rails
import torch
from conftest import answers
from fake_pairs import Kept, measured
from fleets.fleet import KINDS, NOISES, Fabric, Fleet, plant
from probes import test_round_robin as ranks

from ncclprobe.checks.rail.fixtures import World, only
from ncclprobe.cluster.mesh import plan as mesh
from ncclprobe.cluster.rails import plan as rails
from ncclprobe.commands import accept, bandwidth, pairs, workload
from ncclprobe.commands import copies as copies_command
from ncclprobe.engine.doctor import rail_ways
from ncclprobe.engine.judge import judge
from ncclprobe.facts.launcher import detect, half_given
from ncclprobe.facts.reach import MeshListener, Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.pairs.suspects import localise_slowness
from ncclprobe.localise.slow_ranks import localise
from ncclprobe.logs.job_log import LogEvent
from ncclprobe.logs.layers import LAYERS, layer_of
from ncclprobe.logs.stacks import read_stacks
from ncclprobe.model import bounds, stats, training
from ncclprobe.model.errors import NcclprobeError
from ncclprobe.model.ops import OPS
from ncclprobe.model.registry import Check, discover
from ncclprobe.model.snapshot import Every, Job, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.probes import buffers, plan
from ncclprobe.probes.pairs import PairTiming
from ncclprobe.session.measure import interference
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.identity import Devices, choose_backend, identify
from tests import (
    captured_facts,
    check_inputs,
    cluster_inputs,
    engine_inputs,
    expect_inputs,
    job_inputs,
    judge_inputs,
    launch_inputs,
    measure_inputs,
    probes_inputs,
    ranks_inputs,
    report_inputs,
    run_conditions_inputs,
    test_starts,
    watchdog_inputs,
)
from tests.checks import cases
from tests.facts import made_up_jobs
from tests.log import single, single_hosts, single_ranks
from tests.one_rank import whole

Rows = Iterator[tuple[str, object]]


def _planted_inputs() -> Rows:
    """One or two faults of each kind in a fleet of several rails, and in one of a single rail."""
    for kind, count, (nodes, per_node) in product(KINDS, (1, 2), ((12, 4), (9, 1))):
        fabric = Fabric(nodes, rails=per_node, per_leaf=4)
        faults = plant(kind, count, 0.6, fabric, random.Random(f"{kind}{count}"))
        fleet = Fleet(fabric, NOISES["bimodal" if count == per_node else "usual"], faults, seed=count)
        yield f"{count} {kind} of {nodes}x{per_node}", localise_slowness(fleet.rails, fleet.measure)


def _slow(kind: str, first: int, second: int) -> dict[int, PairTiming]:
    """Ranks 2 and 3 of one node, and rank 6 with each other node, at a part of the rate."""
    inside = {first, second} == {2, 3}
    return ranks.healthy(kind, first, second, 3e8 if inside else 4e8 if 6 in (first, second) else 1e9)


def _ranks_inputs() -> Rows:
    """Tournaments of eight ranks: healthy, slow inside and between, without one rank, with a path that swallows all."""
    fleets = {
        "healthy": ranks.Fleet(), "slow": ranks.Fleet(_slow), "one gone": ranks.Fleet(gone={5: 9}),
        "one gone at once, slow": ranks.Fleet(_slow, gone={1: 0}), "a dead path": ranks.Fleet(ranks.swallowing({0, 4})),
        "a dead path, stuck": ranks.Fleet(ranks.swallowing({0, 4}), stuck=frozenset({4})),
        "one hangs": ranks.Fleet(ranks.swallowing(*({3, each} for each in range(8) if each != 3))),
        "gone later": ranks.Fleet(gone={3: 9}),
        "a path, stuck": ranks.Fleet(ranks.swallowing({1, 5}), stuck=frozenset((1, 5))),
        "one with three": ranks.Fleet(ranks.swallowing({1, 3}, {1, 5}, {1, 7})), "all": ranks.Fleet(ranks.ALL),
        "one hangs, others gone": ranks.Fleet(ranks.swallowing({0, 2}), gone=dict.fromkeys((1, 3, 4, 5, 6, 7), 12)),
        "many paths": ranks.Fleet(ranks.swallowing({0, 2}, {1, 3}, {4, 6}, {5, 7}, {0, 1})),
        "slow inside": ranks.Fleet(ranks.at_rate(2e8, (4, 5))), "a byte flipped": ranks.Fleet(ranks.flipped),
        "late words": ranks.Fleet(ranks.late, transfers=4), "late words, one": ranks.Fleet(ranks.late),
    }  # fmt: skip
    for name, fleet in fleets.items():
        found, rows, dropped = ranks.played(fleet)
        yield name, (found, [(row.src, row.dst, row.both, row.step, row.inside, row.GBps) for row in rows], dropped)
        renewed = [said["renew"] for said in fleet.rank_result if "renew" in said]
        few = [
            (row.src_end, row.dst_end, row.wrong, row.mismatch, row.latency_us, row.min_us, row.max_us)
            for row in rows[::7]
        ]
        yield f"{name}: connected anew", (renewed, fleet.rank_result[-1], few)
    kept: list[Kept] = []
    ranks.Fleet(_slow).round_robin(kept, []).run()
    for level in (0.5, 1.0, 4.0):
        yield f"expected {level}", localise(measured(ranks.HOSTS, kept, ranks.NICS), level)


_BAD = End("n1", 1)


def _without_gpus(src: End, dst: End, gpu: bool) -> float:
    return 0.0 if gpu and _BAD in (src, dst) else 1.0


_WORLDS = {
    "healthy": World(fake_rails.names(4)), "dead": World(fake_rails.names(5), carries=only(_BAD)),
    "slow": World(fake_rails.names(5), carries=only(_BAD, share=0.5)),
    "slow one way": World(fake_rails.names(6), carries=only(_BAD, share=0.4, into=False)),
    "late": World(fake_rails.names(4), latency_us={_BAD: 30.0}), "wrong": World(fake_rails.names(4), wrong={_BAD: 3}),
    "small only": World(fake_rails.names(4), small_only=(_BAD,)),
    "gpus": World(fake_rails.names(3), gpus=True, carries=_without_gpus),
}  # fmt: skip


def _rails_inputs() -> Rows:
    """Runs over the ports of made-up fleets: what node 0 orders, and what the checks make of the answers."""
    for name, world in _WORLDS.items():
        nodes = fake_rails.FakeNodes(world)
        seen = fake_rails.played(world, nodes)
        found = fake_rails.verdicts(seen)
        yield name, ([each for each in found.values() if each.findings or each.why], nodes.waves)
        yield f"{name}, each way", rail_ways([Snapshot(node, {Rails: each}) for node, each in seen.items()])
    for nodes, count, rate in ((2, 1, None), (3, 8, 400.0), (16, 8, 400.0), (65, 4, 200.0), (300, 8, 3200.0)):
        size = rails.plan_rails(nodes, count, rate, rails.Budget(), cross=count > 1)
        yield (
            f"plan of {nodes}",
            (size, size.seconds, size.nic_bytes, size.all_pairs, rails.describe_plan(size), size.test()),
        )
    four = rails.plan_rails(4, 2, 100.0, rails.Budget(at_once=1), cross=True)
    pairs = [(End(one, rail), End(other, rail)) for one, other in (("a", "b"), ("c", "d")) for rail in (0, 1)]
    for alone in (False, True):
        yield (
            f"waves, alone {alone}",
            [
                [(str(job.one), str(job.other), job.together) for job in wave]
                for wave in rails.waves(pairs, four, alone=alone)
            ],
        )
    wave = rails.cross_wave({"a": (0, 1), "b": (0, 1, 2)}, [("a", "b")], four)
    yield "cross", [(str(job.one), str(job.other), job.test) for job in wave]


def _meshes_inputs() -> Rows:
    for nodes, limit in ((1, 4), (2, 4), (4, 4), (5, 4), (9, 4), (16, 4), (33, 32)):
        yield f"steps of {nodes}", mesh.steps(nodes, limit)
    listening = {
        rank: tuple(
            MeshListener(role, "eth0", f"10.0.{place}.{rank + 1}" if rank != 2 or place else "fd00::2", 4000 + rank)
            for place, role in enumerate(("gloo", "nccl0", "nccl1")[: 2 + rank % 2])
        )
        for rank in range(6)
    }
    yield "plan", mesh.plan_mesh(listening, 4, {0: "head"})


def _identified(variables: Mapping[str, str]) -> list[str]:
    """Return which rank a process is by these variables, or why none."""
    try:
        return whole(identify(detect(variables), variables))
    except NcclprobeError as refused:
        return whole(str(refused))


def _launchers_inputs() -> Rows:
    """Each launcher's variables whole, and without each of them."""
    given = {name: each for name, each in vars(made_up_jobs).items() if name.isupper() and name[0] != "_"}
    for name, variables in ((name, each) for name, each in given.items() if isinstance(each, dict)):
        yield name, (detect(variables), _identified(variables))
        for gone in variables:
            left = {key: value for key, value in variables.items() if key != gone}
            yield f"{name} without {gone}", (detect(left), half_given(made_up_jobs.ALL_FLAGS, left), _identified(left))
    yield "flags", detect({}, made_up_jobs.ALL_FLAGS)


def _plans_inputs() -> Rows:
    """How many calls and batches a row takes, and which numbers stand for its samples."""
    for call_s, budget_s in product((1e-7, 1e-5, 3e-3, 2.0), (0.5, 4.0, 600.0)):
        yield f"{call_s} in {budget_s}", plan.calls_per_batch(call_s, plan.Target(0.02, budget_s))
    draw = random.Random(3)
    for count, sigma in product((3, 7, 12, 40), (0.002, 0.05, 0.3)):
        samples = [1e-3 * draw.lognormvariate(0, sigma) for _ in range(count)]
        more = [plan.more_batches(samples, spent_s, plan.Target(0.02, 2.0)) for spent_s in (0.1, 1.5, 3.0)]
        yield (
            f"{count} of {sigma}",
            (more, stats.summary(samples), stats.median_interval(samples), stats.precision(samples)),
        )
    for op, number in product(OPS.values(), (2, 3, 8)):
        shape = op.shape(1 << 20, number, 4)
        yield f"{op.name} of {number}", (shape, op.bus_factor(number))


def _patterns_inputs() -> Rows:
    """What ranks send and must receive, by the sums of periods; and what is wrong with a buffer that is not that."""
    for dtype, redop, number in product(
        (torch.float32, torch.bfloat16, torch.float16, torch.int8), (None, "sum", "prod", "min", "max", "avg"),
        (2, 7, 200)):  # fmt: skip
        made = buffers.pattern(dtype, redop, number, torch.device("cpu"))
        rows, total = made.rows.double(), made.total.double()
        weights = torch.arange(1, rows.shape[1] + 1).double()
        sums = [float((rows[0] * weights).sum()), float((rows[-1] * weights).sum()), float((total * weights).sum())]
        yield f"{dtype} {redop} of {number}", (sums, made.tolerance)


_KEPT_OPTIONS = tuple({*Options.__struct_fields__} - {"argv", "keep", "notes"})
_LINES = {
    bandwidth.parse: ("", "-b 1K", "-e 64M", "-b 4 -e 4", "-b 3", "-b 2 --dtype bfloat16", "-b 8M -e 4M", "-b 8M -f 8",
        "-f 1", "-b 1M -e 3M", "-b 512M", "-n 10000000", "-n 10000001", "-w 10000001", "--batches 3",
        "--batches 10000001", "-w 0", "--precision 50%", "--precision 50.1", "--precision 0", "--budget 3",
        "-n 5 --budget 3", "--batches 5 --precision 2", "--graph", "--graph --mode queued", "--graph --backend gloo",
        "--mode queued --backend gloo", "--repeat 3", "--repeat 4", "--op all", "--op all --timeout 3600",
        "--op all --timeout 10", "--batches 0", "--op none", "--precision 0.5%", "--op broadcast,reduce --redop max",
        "-e 1000000000000000000000000000000000", "--select env.* --select ib.* --ignore ib.rate --fail-on warn",
        "--config site.toml -v", "--no-config -q", "--json /dev/null", "--html /dev/null --no-color", "-q -v",
        "--junit /dev/null --markdown /dev/null --prometheus /dev/null", "--nproc 2", "--nproc 0", "--timeout 0",
        "--timeout 1e9", "--timeout nan", "--fail-on note", "--require-judged", "--op all_reduce,all_reduce",
        "--op xyzzy", "--dtype fp9", "--redop median", "-b 0", "-b 1T", "-f x", "-n 0", "--tolerance 20", "--mode fast",
        "--precision two", "--budget 0", "--frobnicate", "--expect /no/such/file", "--phase-timeout 1e300", "--pairs",
        "--copies", "--groups=tp=2", "--params=7B", "--graph --mode blocking", "--timeout 1e999", "--batches x",
        "--backend mpi", "--json -", "--json - --junit -", "--json /nowhere/x",),
    workload.parse: ("", "ddp", "tp,ddp", "all --groups tp=2", "--groups tp=2,dp=4", "--groups tp=0", "--params 500K",
        "--params 1.5M", "--params 2B", "--params 3G", "--params 1T", "--params 1000T", "--params 1000.1T",
        "--params 0", "--params 7", "--params 8", "--layers 1000 --micro-batches 1000", "--layers 1001",
        "--micro-batches 1001", "--dtype float16 -e 4K", "--params many", "--params 4 --layers 8", "--redop=max",),
    copies_command.parse: ("", "--backend gloo", "--nproc 8", "--require-judged", "--timeout 9", "--expect x.toml",
        "--nproc x", "-e=1M",),
    pairs.parse: ("", "--rounds 3", "--rounds 0", "--rounds x", "-b 0", "-b 1", "-b 64 -e 64", "-b 64 -e 63",
        "-b 16 -e 1M", "-e 1M",),
    accept.parse: ("", "--level quick", "--level standard", "--level full", "--ladder", "--level quick --ladder",
        "--timeout 30", "--timeout 100000", "--expect-gpus 8", "--expect-gpus 8 --backend gloo", "--level long",
        "--timeout 90", "--level quick --timeout 90",),
}  # fmt: skip


def _options_inputs() -> Rows:
    """What command lines ask for, at the limits of each option, and what is refused."""
    for parse, lines in _LINES.items():
        for line in lines:
            name = f"{parse.__module__.rpartition('.')[2]} {line}"
            try:
                found = parse(line.split())
                sizes = {"over gloo": found.sizes_for("gloo")}  # which end before NCCL's
                yield name, {each: getattr(found, each) for each in sorted(_KEPT_OPTIONS)} | sizes
            except NcclprobeError as refused:
                yield name, str(refused)


_MAIN = 'Thread 7 (idle): "MainThread"\n'
_OTHER = 'Thread 8 (active): "worker"\n'
_IN_CALL = "    all_reduce (torch/distributed/distributed_c10d.py:2450)\n    step (train/loop.py:88)\n"
_AT_WORK = "    forward (train/model.py:12)\n    <module> (train/main.py:5)\n"
_NATIVE = "    cuStreamSynchronize (libcuda.so.1)\n    step (train/loop.py:90)\n"
_STACKS = {
    "main first": _MAIN + _AT_WORK + _OTHER + _NATIVE, "main last": _OTHER + _NATIVE + _MAIN + _AT_WORK,
    "call elsewhere": _MAIN + _AT_WORK + _OTHER + _IN_CALL,
    "two calls": _OTHER + _IN_CALL + _MAIN + _IN_CALL.replace("all_reduce", "barrier"),
    "main is empty": _MAIN + _OTHER + _NATIVE, "no main": _OTHER + _AT_WORK, "library": _MAIN + _NATIVE,
    "wrapped": _MAIN
    + _IN_CALL.replace("    step", "    wrapper (torch/distributed/distributed_c10d.py:8)\n    <module>"),
    "no folders": _MAIN + "    f (a.py:3)\n    g (b.py:4)\n",
    "installed": _MAIN
    + "    get (queue.py:3)\n    f (/v/x-packages/z.py:4)\n    g (<string>:5)\n    run (job/a.py:7)\n",
    "only natives": _MAIN + "    cudaMemcpy (libcudart.so.12)\n    pncclSend (libnccl.so.2)\n",
    "hexadecimal": "Thread 0x7F01 (active+gil)\n" + _AT_WORK + _MAIN.replace("7", "0x7") + _AT_WORK,
    "two mains": _MAIN + _AT_WORK + _MAIN.replace("7", "9") + _IN_CALL,
    "ranks before": f"rank 3:\n{_MAIN}{_AT_WORK}run --node_rank=4\n{_MAIN}{_AT_WORK}",
    "tensor parallel": "".join(f"Process 8: x_{of}\n{_MAIN}{_AT_WORK}" for of in ("TP3", "DP1_TP2", "TP4 rank=6")),
    "long numbers": _MAIN + "    f (train/a.py:1234567)\n    g (train/a.py:12345678)\n    h (train/a.py:x)\n",
}  # fmt: skip


def _stacks_inputs() -> Rows:
    """The thread that stands for a process, its call and its place, with and without the line of the process."""
    for name, text in _STACKS.items():
        for head in ("", "Process 7: python train.py --rank 3\nPython v3.11.9 (/usr/bin/python3)\n\n"):
            found = read_stacks("rank5.txt", (head + text).encode())
            yield (
                f"{name}{', a process' if head else ''}",
                [(each, each.call, str(each.own), each.where) for each in found],
            )


def _training_inputs() -> Rows:
    """What a rank does in a step, the time of it with and without overlap, and the groups of a grid."""
    for params, layers, micro in ((5_000_000, 3, 2), (40_000_000, 2, 1)):
        model = training.Model(params=params, layers=layers, micro_batches=micro)
        yield f"buckets of {params}", training.buckets(model)
        for strategy in training.STRATEGIES:
            items = training.step(strategy, model)
            times = [training.predict(items, 0.5, lambda call: call.nbytes / 1e9, overlap) for overlap in (True, False)]
            needed = [training.needed_at(items, place) for place in range(0, len(items), 3)]
            yield f"{strategy} of {params}", (items, times, needed, training.memory_bytes(strategy, model))
    hosts = [f"n{number // 4}" for number in range(16)]
    for text in ("tp=4,dp=4", "tp=8,dp=2", "pp=2,tp=2,dp=4", "dp=16"):
        grid = training.parse(text)
        groups = {kind: grid.groups(kind) for kind in training.AXES}
        across = {kind: training.crossing(each, hosts) for kind, each in groups.items()}
        yield text, (grid, groups, across, training.advice(grid, hosts))
    for pairs_too, count in product((True, False), (1, 4, 5, 16)):
        yield f"ladder of {count}, pairs {pairs_too}", training.plan(hosts[:count], pairs=pairs_too)


def _applies_inputs() -> Rows:
    """What the engine makes of the cases of each check of facts of nodes: as they are, over gloo, and locally."""
    for rule in cases.checks():
        if rule.cause or {need.of for need in rule.needs} - {"node", "nodes", "job"}:
            continue
        told: dict[str, list[str]] = {}
        for kind, examples in (("bad", rule.bad_examples()), ("good", rule.good_examples())):
            for facts in examples:
                own = next((each for each in facts if isinstance(each, Job)), Job())
                for name, job in ((kind, own), ("gloo", replace(own, backend="gloo")), ("alone", Job(local=True))):
                    verdicts = judge(_nodes(rule, facts), [rule], job)
                    told.setdefault(name, []).append("-".join(each.status.value for each in verdicts))
        yield rule.key, told


def _nodes(rule: Check, facts: Sequence[Any]) -> list[Snapshot]:
    """Return the nodes of which a case of a check tells."""
    given: dict[str, dict[type, Any]] = {}
    for need, fact in zip(rule.needs, facts, strict=False):  # the last may be usual
        if not isinstance(fact, Job):
            for node, each in fact.by_node.items() if isinstance(fact, Every) else [("n", fact)]:
                given.setdefault(node, {})[need.fact] = each
    return [Snapshot(node, each) for node, each in sorted(given.items())]


def _backends_inputs() -> Rows:
    """The GPUs that a process may use, and what its ranks measure with, or why they cannot."""
    listed = ("2,3", " 2, 3 ", "0,9,1", "GPU-0a,GPU-0b,GPU-0c", "MIG-9a0c,MIG-9a0d", "NoDevFiles", "", "-1", "8", "7")
    seen = [Devices(nodes, usable, "2.13.0+cpu") for nodes, usable in product((0, 2, 8), (None, 0, 1, 2, 8))]
    seen += [Devices(8, denied=denied) for denied in (6, 8)]
    seen += [Devices(nodes, listed=text) for nodes, text in product((0, 1, 8), listed)]
    seen += [Devices(8, 4, listed="0,1"), Devices(8, denied=6, listed="1,2")]
    for each in seen:
        found: dict[str, str] = {}
        for asked, kind, ranks_here in product((None, "nccl", "gloo"), ("torchrun", "slurm"), (1, 2, 8)):
            try:
                backend, note = choose_backend(asked, kind, ranks_here, each)  # type: ignore[arg-type]
                found[f"{asked} {kind} {ranks_here}"] = f"{backend} {note}".rstrip()
            except NcclprobeError as refused:
                found[f"{asked} {kind} {ranks_here}"] = str(refused)
        yield f"{each.nodes} {each.usable} {each.denied} {each.listed!r}", (each.shown, found)


def _settings_inputs() -> Rows:
    """Which settings falsify what is timed."""
    values = {
        "TORCH_DISTRIBUTED_DEBUG": ("detail", "INFO"), "NCCL_DEBUG": ("INFO", "trace", "WARN"),
        "CUDA_LAUNCH_BLOCKING": ("0", "1", ""), "TORCH_NCCL_BLOCKING_WAIT": ("1", "no"), "NCCL_BLOCKING_WAIT": ("Yes",),
        "TORCH_NCCL_NAN_CHECK": ("true", "0"), "TORCH_DIST_NAN_CHECK": ("t",),
        "TORCH_NCCL_DESYNC_DEBUG": ("", "1", "Y"),
        "NCCL_CHECK_MODE": ("debug_local", "DEBUG_GLOBAL", "DEFAULT"), "NCCL_CHECK_POINTERS": ("0", "1" + " " * 70),
    }  # fmt: skip
    variables = [{name: value} for name, those in values.items() for value in those]
    both = product(("INFO", "WARN", "abort"), ("INIT,ALL", "INIT,NET", "ALL"))
    variables += [{"NCCL_DEBUG": level, "NCCL_DEBUG_SUBSYS": systems} for level, systems in both]
    for each, backend in product(variables, ("nccl", "gloo")):
        yield f"{backend} {each}", interference.falsifying(backend, each, answers({}))


def _layers_inputs() -> Rows:
    """The layer of a line that holds each mark, and what each layer wraps and offers."""
    for layer in LAYERS:
        marks = [f"{text}:{layer_of(LogEvent(0, 1, text)).name}" for text in (*layer.marks, *layer.begins)]
        yield layer.name, (marks, layer.wraps, layer.fault, layer.switch)


def _rules_inputs() -> Rows:
    """What each check declares: its code, its signs, what it may follow from, what it needs, and how it is weighed."""
    for rule in discover("ncclprobe.checks", Check):
        weighed = (
            rule.required, rule.last, rule.slows, rule.privilege, rule.requires, rule.applies and rule.applies.words,
        )  # fmt: skip
        needs = [f"{need.name}:{need.fact.__name__}:{need.accepts_absent}:{need.of}" for need in rule.needs]
        yield rule.key, (weighed, needs, rule.cause, rule.title, rule.right)


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    **expect_inputs.FUNCTIONS, "planted": _planted_inputs, "ranks": _ranks_inputs, "rails": _rails_inputs,
    "meshes": _meshes_inputs, "launchers": _launchers_inputs, "plans": _plans_inputs, "patterns": _patterns_inputs,
    "options": _options_inputs, "stacks": _stacks_inputs, "training": _training_inputs,
    **{f"altered-{machine}": partial(captured_facts.altered, machine) for machine in captured_facts.MACHINES},
    "applies": _applies_inputs, "starts": test_starts.outcomes,
    "bounds": lambda: ((name, value) for name, value in vars(bounds).items() if name.isupper()),
    "backends": _backends_inputs, "layers": _layers_inputs, "rules": _rules_inputs,
    **{f"log-{name}": partial(single.outcomes, text) for tables in (single_ranks.TABLES, single_hosts.TABLES)
       for name, text in tables.items()}, "settings": _settings_inputs,
    **engine_inputs.FUNCTIONS, **job_inputs.FUNCTIONS, **judge_inputs.FUNCTIONS, **check_inputs.FUNCTIONS,
    **measure_inputs.FUNCTIONS, **cluster_inputs.FUNCTIONS, **probes_inputs.FUNCTIONS, **launch_inputs.FUNCTIONS,
    **ranks_inputs.FUNCTIONS, **watchdog_inputs.FUNCTIONS, **report_inputs.FUNCTIONS, **run_conditions_inputs.FUNCTIONS,
}  # fmt: skip
"""The functions of each file with their input."""
