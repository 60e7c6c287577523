"""Made-up reports: a sweep with a slow corner, pairs with a slow sender, a fleet of any size with its faults."""

from itertools import permutations, product

from ncclprobe.model.causes import Cause, Consequence, Moment, NotUnderstood, RankState
from ncclprobe.model.findings import Evidence, Finding, Severity, Status, Verdict, seen
from ncclprobe.model.measurement import Expectation, Fingerprint, Library, Measurement, TimeStats
from ncclprobe.model.nccl_selection import DeviceRow, NodeTopology, NumaRow
from ncclprobe.model.pair_results import Blamed, Localisation, PairRow
from ncclprobe.model.report import Area, CheckNote, Excerpt, LaunchRow, NodeEnvironment, NodeRow, Report, Setting, Tool
from ncclprobe.model.traffic import CopyRow, GroupRow, NicBytes, OperationTraffic, StepRow
from ncclprobe.model.values import replace

from ..samples import SICK

MARKUP = "</script><img src=x onerror=alert(1)>\u2028<b>n7</b>"
"""A host name that would be a page's ruin if anything took it for more than text."""

EMPTY = Report(tool=Tool("ncclprobe", "0.0"), started="2026-11-21T07:00:00Z", duration_s=12.5,
               command="ncclprobe doctor --nnodes 8", status=Status.PASS, exit_code=0)  # fmt: skip


def row(op: str, nbytes: int, place: str = "out", *, slow: float = 1.0) -> Measurement:
    """A row as eight GPUs of 480 GB/s behind 18 us would give it, `slow` times slower."""
    factor = 2 * 7 / 8 if op == "all_reduce" else 7 / 8
    healthy = 18 + factor * nbytes / 480e3
    time = healthy * slow
    bus, expected = (factor * nbytes / each / 1e3 for each in (time, healthy))
    return Measurement(
        op=op, place="in" if place == "in" else "out", mode="queued", backend="nccl", dtype="float32",
        library=Library("nccl", "2.27.3"), redop="sum" if "reduce" in op else None, nbytes=nbytes, count=nbytes // 4,
        ranks=8, nodes=1, iters=20, batches=9, footprint_bytes=1 << 30, issue_us=4.0, slowest_rank=5, wrong=0,
        time_us=TimeStats(time, time * 0.99, time * 0.95, time * 1.05, time * 1.1, time * 0.02), precision=0.035,
        algbw_GBps=bus / factor, busbw_GBps=bus, interval_us=(time * 0.95, time * 1.02),
        expectation=Expectation(expected, 0.9 * expected, "GB/s", "published", "an H100 board's NVLinks", "a paper"),
        status="pass" if slow < 1.1 else "warn" if slow < 1.2 else "fail")  # fmt: skip


def sweep() -> Report:
    """Three collectives in two places; all_reduce in place falls behind from 64 MiB on."""
    rows = [
        row(op, 1 << power, place, slow=1.6 if place == "in" and op == "all_reduce" and power >= 26 else 1.02)
        for op in ("all_reduce", "all_gather", "reduce_scatter")
        for place in ("out", "in")
        for power in range(10, 33, 2)
    ]
    told = "reaches 266 of 432 GB/s at 64 MiB and above, in place"
    slow = Finding(Severity.FAIL, "all_reduce", told, "unknown", "retest")
    check = Verdict("run.bandwidth", "gpu-07", Status.FAIL, "A collective is slower than expected", "", True, (slow,))
    return replace(
        EMPTY, status=Status.FAIL, exit_code=4, nodes=(NodeRow("gpu-07", 0, "gpu-07", Status.FAIL),),
        command="torchrun --nproc-per-node 8 -m ncclprobe.bandwidth --op all_reduce,all_gather,reduce_scatter",
        launch=LaunchRow("torchrun", 1, 8), measurements=tuple(rows), checks=(check,),
        coverage={"fail": 1, "pass": 0, "unknown": 0, "warn": 0, "skip": 0})  # fmt: skip


def whole() -> Report:
    """One of everything that a page shows: findings with their sources, pairs, tables, pictures of nodes, gaps."""
    ill, measured = fleet(12), moved()
    note = CheckNote("An InfiniBand port is slow", "All ports have one rate", "the slowest port paces every collective")
    source = Excerpt(
        "/sys/class/infiniband/…/rate", "node0005", "rate", ("200 Gb/sec (4X HDR)",), 1, (0,), "2 lines left"
    )
    return replace(
        measured, nodes=ill.nodes, checks=(*ill.checks, *measured.checks), topology=ill.topology, notes=("a fallback",),
        environment=ill.environment, missing_nodes=ill.missing_nodes, coverage=ill.coverage, excerpts=(source,),
        explained={"ib.rate": note}, measurements=sweep().measurements[:6],
        areas=(Area("GPUs", "8 × H100", Status.PASS), Area("NICs", "8 × 400 Gb/s", Status.FAIL, ("ib.rate",), 1)),
    )  # fmt: skip


def causes() -> Report:
    """A job of four ranks of which one was killed, with the lines around those that say so."""
    line = Evidence("n0.log", 12, "exitcode: -9 (SIGKILL)")
    followed = Consequence(
        "log.watchdog", "timed out in all_reduce", (0, 1), ("n0",), (Evidence("n0.log", 20, "timeout"),)
    )
    killed = Cause(
        "rank-crashed", "log.rank-ended/killed-by-a-signal", "named", "was ended by SIGKILL", ranks=(2,), nodes=("n0",),
        evidence=(line,), blame="job", action="fix-job", remedy="look at `dmesg -T | grep -i oom`",
        why="the kernel ends what takes too much memory", consequences=(followed,), doctor="host.oom")  # fmt: skip
    moments = tuple(
        Moment(1.7e9 + n, rank, "n0", "timed out", Evidence("n0.log", 20 + n, "timeout"), "log.watchdog" * (rank == 1))
        for n, rank in enumerate((0, 1, 3))
    )
    ranks = tuple(
        RankState(n, "n0", 100 + n, Evidence("n0.log", 20 + n, "timeout"), "all_reduce", "failed") for n in range(4)
    )
    return replace(
        EMPTY, command="ncclprobe explain n0.log", status=Status.FAIL, exit_code=4, files=("1 log",), causes=(killed,),
        timeline=(Moment(1.7e9, 2, "n0", "killed", line, killed.id), *moments), ranks=ranks,
        not_understood=(NotUnderstood("n0.log", 1, 3, "cannot go on"),),
        excerpts=(Excerpt("n0.log", "", "n0.log:12", ("step 7", line.text, "bye"), 11, (1,)),))  # fmt: skip


def pairs(nodes: int = 8) -> Report:
    """All pairs of `nodes`, of which n3 sends at a tenth, both ways measured; and a suspect."""
    rows = []
    for src, dst in permutations(range(nodes), 2):
        rate = (4.8 if src == 3 else 47.5 + (src * 7 + dst * 3) % 11 / 8) * (0.8 if (src, dst) == (5, 1) else 1)
        pair = PairRow(
            src=src, dst=dst, src_end=f"n{src}", dst_end=f"n{dst}", nbytes=64 << 20, latency_nbytes=8, GBps=rate,
            latency_us=11 + (src + dst) % 5 / 3, time_us=(64 << 20) / rate / 1e3, min_us=1400.0, max_us=1420.0,
            samples_us=(1410.0,) * 5)  # fmt: skip
        rows += [pair, replace(pair, both=True, GBps=rate * 0.9)]
    culprit = Blamed("out of n3", "node", ("n3",), None, "out", 0.1, 0.999, 14, 14, 4, 5)
    suspect = Blamed("out of n5 with n1", "pair", ("n5", "n1"), None, "out", 0.8, 0.71, 2, 2, 1, 1)
    found = Localisation(
        nodes, "node", (culprit,), (suspect,), ("into n0",), (), {"one way": 47.9, "both ways": 43.1}, False, 131, 2
    )
    slow = Finding(
        Severity.FAIL, "out of n3", "what this node sends is slow: 10 % of the usual bandwidth", "node",
        "repair", nodes=("n3",), loss=0.9, lost_GBps=43.1, evidence=(seen("131 pair tests", "slow in 14 of 14"),),
    )  # fmt: skip
    return replace(
        EMPTY, command="torchrun --nnodes 8 -m ncclprobe.bandwidth --pairs", status=Status.FAIL, exit_code=4,
        nodes=tuple(NodeRow(f"n{n}", n, f"n{n}", Status.FAIL if n == 3 else Status.PASS) for n in range(nodes)),
        launch=LaunchRow("torchrun", nodes, nodes), pairs=tuple(rows), localisation=found,
        checks=(Verdict("run.pairs", "n0", Status.FAIL, "A node, a NIC or a pair is slow", "", True, (slow,)),),
    )  # fmt: skip


def moved() -> Report:
    """One row or two of whatever else is measured."""
    copy = CopyRow(
        node="n0", rank=3, kind="h2d", device="GPU3", numa=0, near=True, nbytes=1 << 30, GBps=24.5, min_GBps=24.1,
        max_GBps=24.9, samples=9, expected_GBps=55.0, threshold_GBps=50.0, status="fail")  # fmt: skip
    group = GroupRow(
        kind="dp", op="all_reduce", nbytes=64 << 20, size=4, groups=8, crossing=8, slowest=(3, 7, 11, 15),
        alone_us=2100.0, alone_busbw_GBps=48.0, together_us=9100.0, together_busbw_GBps=11.1, slowdown=4.33,
        advice=("tp groups span nodes: ranks 0 and 8",))  # fmt: skip
    step = StepRow(
        strategy="ddp", ranks=8, params=125_000_000, layers=12, dtype="bfloat16", micro_batches=1, overlap=True,
        calls=10, call_bytes=250_000_000, steps=5, step_us=41_000.0, step_min_us=40_500.0,
        step_max_us=42_000.0, compute_us=36_000.0, calls_us=9_000.0, exposed_us=5_000.0, efficiency=0.88)  # fmt: skip
    nics = (
        NicBytes("n0", "mlx5_0", "rdma", 1 << 30, 1 << 30, 0.97, True),
        NicBytes("n0", "eth0", "ethernet", 30 << 20, None, 0.03, False, MARKUP),
    )
    return replace(
        pairs(), copies=(replace(copy, device="GPU2", GBps=55.1, status="pass"), copy), groups=(group,), steps=(step,),
        nic_traffic=(OperationTraffic("all_reduce", 1 << 30, nics),),
        fingerprint=Fingerprint({"gpu": "8 x NVIDIA H100 80GB HBM3"}, "0c1d2e", {"driver": "570.86.15"}))  # fmt: skip


def board() -> NodeTopology:
    """Eight GPUs on NVSwitches, each beside a NIC."""
    gpus = tuple(DeviceRow(f"GPU{n}", "NVIDIA H100 80GB HBM3", f"0000:{n:02x}:00.0", n // 4, None) for n in range(8))
    nics = tuple(DeviceRow(f"mlx5_{n}", "MT4129", f"0000:{n:02x}:01.0", n // 4, None) for n in range(8))
    paths: dict[str, dict[str, str | None]] = {f"GPU{n}": {} for n in range(8)}
    for n, m in product(range(8), range(8)):
        if n != m:
            paths[f"GPU{n}"][f"GPU{m}"] = "NVL"
        paths[f"GPU{n}"][f"mlx5_{m}"] = "PIX" if m == n else "PHB" if m // 4 == n // 4 else "SYS"
    return NodeTopology(gpus, nics, (NumaRow(0, "0-55,112-167"), NumaRow(1, "56-111,168-223")), paths)


_IDS = [f"{prefix}.c{n}" for prefix in ("env", "gpu", "nvl", "pci", "ib", "host", "launch", "sync") for n in range(15)]


def fleet(nodes: int, names: tuple[str, ...] = ()) -> Report:
    """`nodes` nodes of 120 checks: some ports slow, some NVLinks down, some nodes closed, three never heard of."""
    called = [*names, *(f"node{n:04d}" for n in range(len(names), nodes))]
    verdicts = [verdict for n, name in enumerate(called) for verdict in (*map(_passes(name), _IDS), *_faults(n, name))]
    sick = {verdict.node: verdict.status for verdict in verdicts if verdict.status in (Status.FAIL, Status.UNKNOWN)}
    return replace(
        EMPTY, status=Status.FAIL, exit_code=4, command=f"srun -N {nodes} ncclprobe doctor",
        launch=LaunchRow("slurm", nodes, 8 * nodes), missing_nodes=("node9001", "node9002", "node9003"),
        nodes=tuple(NodeRow(name, n, name, sick.get(name, Status.PASS)) for n, name in enumerate(called)),
        checks=tuple(verdicts), topology=dict.fromkeys(called, board()),
        coverage={state: sum(v.status.value == state for v in verdicts) for state in ("pass", "fail", "unknown")},
        environment={name: _environment(n) for n, name in enumerate(called)})  # fmt: skip


def _passes(name: str):  # type: ignore[no-untyped-def]
    return lambda check: Verdict(check, name, Status.PASS, f"What {check} looks for", required=True)


def _faults(n: int, name: str) -> list[Verdict]:
    found = []
    if n % 97 == 5:
        slow = Finding(
            Severity.FAIL, f"mlx5_{n % 8}:1", "runs at 200 Gb/s, 7 of 8 ports at 400 Gb/s", "link", "repair",
            evidence=(seen("/sys/class/infiniband/…/rate", "200 Gb/sec (4X HDR)"),),
            remedy="reseat or replace the cable")  # fmt: skip
        found.append(
            Verdict("ib.rate", name, Status.FAIL, "An InfiniBand port is slower than its siblings", "", True, (slow,))
        )
    if n % 301 == 7:
        down = Finding(
            Severity.FAIL, f"GPU{n % 8}", f"{17 - n % 3} NVLinks are up; its siblings have 18", "link", "repair"
        )
        found.append(Verdict("nvl.links", name, Status.FAIL, "NVLinks are down", "", True, (down,)))
    if n % 211 == 11:
        why = "/dev/infiniband/uverbs0: permission denied: run in the job's own container"
        found.append(Verdict("ib.perm", name, Status.UNKNOWN, "A device cannot be opened", why, True))
    return found


def _environment(n: int) -> NodeEnvironment:
    driver = "570.86.15" if n % 401 else "565.57.01"
    settings = (Setting("NCCL_IB_HCA", "mlx5", "environment"),) + (
        (Setting("NCCL_DEBUG", "TRACE", "/etc/nccl.conf:3"),) if n % 512 == 3 else ()
    )
    return NodeEnvironment({"driver": driver, "nccl": "2.27.3", "kernel": "6.8.0-45-generic"}, settings)


_PARTS = (moved(), pairs(2), fleet(2))
_FOUND = {name: value for part in _PARTS for name in Report.__struct_fields__ if (value := getattr(part, name))}
FULL: Report = replace(SICK, **{name: value for name, value in _FOUND.items() if not getattr(SICK, name)})
"""A report with something in nearly every part."""
