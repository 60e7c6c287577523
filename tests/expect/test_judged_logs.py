"""``expect --judge LOG``: what a log says is read, what it does not say is assumed, and its rows are judged."""

import contextlib
import html
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ncclprobe.commands import expect
from ncclprobe.commands import main as program
from ncclprobe.expect.recognise import ExpectationContext
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import OPS
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

HEADER = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong"
NCCL_LINE = "n0:70:81 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA"
DIED = "n1: Test NCCL failure common.cu:1204 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '"
UNHANDLED = "n0: Test NCCL failure common.cu:1119 'unhandled system error (run with NCCL_DEBUG=INFO …) / '"
KILLED = "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 10:22 DUE TO TIME LIMIT ***"
H200, L40S, GB300, A100 = "NVIDIA H200", "NVIDIA L40S", "NVIDIA GB300", "NVIDIA A100-SXM4-80GB"
H100, H100_PCIE, RTX5090 = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 5090"
GIB = 1 << 30
CAPTURES = Path(__file__).parents[1] / "captures"
SIZES = tuple(1 << power for power in range(28, 33))


@pytest.fixture(autouse=True)
def no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = ExpectationContext(Absent("there is no GPU"), None, "")
    real = expect.machine_of
    monkeypatch.setattr(expect, "machine_of", lambda name, file: real(name, file) if name or file else nothing)


def rows(
    rates: Sequence[float], ranks: int, op: str = "all_reduce", last: str = "", wrong: int = 0, first: int = SIZES[0]
) -> Iterator[str]:
    """A row for each rate, in GB/s of bus bandwidth, from `first` bytes; `last` stands behind the row in place."""
    own = OPS[op]
    for number, rate in enumerate(rates):
        nbytes, algbw = first << number, rate / own.bus_factor(ranks)
        count = nbytes // 4 // (ranks if own.divided else 1)
        one = f"{nbytes / algbw / 1e3:9.1f} {algbw:7.2f} {rate:7.2f}"
        yield f"{nbytes:12} {count:12} float {'sum' if own.reduces else 'none'} -1 {one} {wrong} {one} {last or wrong}"


def devices(gpus: Mapping[int, str], each: int, pid: str = " Pid 7") -> list[str]:
    return [
        f"#  Rank {n:2} Group  0{pid} on n{n // each} device {n % each} [0x{n % each}0] {gpu}"
        for n, gpu in gpus.items()
    ]


def text(rates: Sequence[float], ranks: int, gpu: str = H200, each: int = 8, **more: Any) -> str:
    """A whole log of `ranks`; `above` stands before it, and `listed` are the ranks whose lines it has."""
    listed = more.pop("listed", range(ranks))
    program = more.pop("program", "# Collective test starting: all_reduce_perf")
    average = more.pop("average", sum(rates) / len(rates))
    head = [more.pop("above", ""), program, *devices(dict.fromkeys(listed, gpu), each), HEADER]
    end = ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {average:g}", ""]
    return "\n".join([*head, *rows(rates, ranks, **more), *end])


def lines(*parts: str | Sequence[str] | Iterator[str]) -> str:
    return "\n".join(line for part in parts for line in ([part] if isinstance(part, str) else part))


def told(folder: Path, log: str, options: str) -> list[str]:
    """What is said of a log, line by line: exit code, rows by verdict, their reasons, findings, assumptions."""
    path, out = folder / "run.log", io.StringIO()
    path.write_text(log)
    nothing, real = ExpectationContext(Absent("there is no GPU"), None, ""), expect.machine_of
    here = mock.patch.object(expect, "machine_of", lambda name, file: real(name, file) if name or file else nothing)
    try:
        with here, contextlib.redirect_stdout(out):
            code = expect.main(("--judge", str(path), "--json", "-", *shlex.split(options)))
    except UsageError as refused:
        return [f"refused: {refused}".replace(f"{folder}", "")]
    said = json.loads(out.getvalue())
    kinds = Counter(f"{r['table']}: {r['op']} {r['ranks']}/{r['nodes']} {r['status']}" for r in said["rows"])
    judged = [(row, row["expectation"] or {"value": 0.0, "threshold": 0.0}) for row in said["rows"]]
    return [
        f"exit {code:d} {said['exit_code']}",
        *[f"{count} of {kind}" for kind, count in kinds.items()],
        ", ".join(f"{r['nbytes']}/{r['status']}/{e['value']:.4g}/{e['threshold']:.4g}" for r, e in judged),
        *[f"{' '.join(map(str, each.values()))}" for each in said["findings"]],
        *dict.fromkeys(f"why: {row['why'].partition('; model: ')[0]}" for row in said["rows"]),
        *[f"{name}: {said[name]}" for name in ("headline", "assumed", "failed", "settings")],
    ]


FAST, SLOW, GATHERED = (300, 400, 440, 450, 455), (50, 60, 88, 89, 89), (30, 35, 40, 42, 43)
WHOLE = text(FAST, 16)
PART = WHOLE.partition("# Out")[0]
SENT = text(GATHERED, 4, op="all_to_all", program="# nothing", each=2)
UNCHECKED = re.sub(r"(?m)^(?![#\[])(.*)$", lambda row: re.sub(r" 0(?= |$)", " N/A", row[1]), SENT)
TWO_NICS = "n0:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
RACKS = text((250, 300, 340, 352, 357), 16, GB300, each=4, op="all_gather", program="all_gather_perf")
NO_MULTICAST = "n0:70:81 [0] NCCL INFO NVLS multicast support is not available on dev 0"
UNNAMED, NAMED, OTHERS = (
    text((560, 640, 700, 740, 760), 8, gpu, each=4) for gpu in ("NVIDIA Graphics Device", GB300, "NVIDIA B200")
)
SMALL = re.sub(
    r"(?m)^ *268435456 .*$", "1048576 262144 float sum -1 900 1.17 2.18 0 900 1.17 2.18 0", WHOLE, count=1
)  # fmt: skip
BARE, OF_960 = lines(rows(FAST, 16)), lines(HEADER, rows((110, 212, 338, 364, 367), 960))
ONE_RANK = lines(devices({0: H200}, 8), "1048576 262144 float sum -1 10.0 104.86 0.00 0 0.5 2097.15 0.00 0")
LISTS = ([*devices({n: H200}, 8), HEADER, *rows(FAST, n + 1), "# Out of bounds values : 0 OK"] for n in (15, 1023))
OLD = lines(
    "size count type time algbw busbw error time algbw busbw error",
    "4294967296 134217728 float 29122 129.05 129.05 1e+00 29169 128.84 128.84 1e+00",
    " Out of bounds values : 2 FAILED",
)
APART = text((2.3,) * 5, 2, RTX5090, each=2)
SHARED = re.sub(r"device \d \[0x\d0\]", "device 0 [0000:02:00]", APART)
BROKEN = re.sub(r"(?m)^( *1073741824 .*) float ", r"\1 flNCCLoat ", WHOLE)
MIXED = devices({0: H100_PCIE, 1: H100_PCIE, 2: "NVIDIA A100 80GB PCIe", 3: "NVIDIA A100 80GB PCIe"}, 2)
AMD = [
    lines("all_reduce_perf", devices(dict.fromkeys(range(2), "AMD MI300A"), 8, pid), HEADER, rows((70, 75), 2))
    for pid in (" Pid 7", "")
]
HEAD = lines("all_reduce_perf", devices(dict.fromkeys(range(8), H200), 8))
CRASHED = f"{next(rows((1,), 8)).partition(' -1 ')[0]} -1 n0: Test CUDA failure common.cu:389 'out of memory'"
HGX, DGX = "--machine 'HGX H200' --nodes 2", "--machine dgx-h100"
ONE_L40S, NVLS, RING = "--machine '1 x L40S, 1 NIC x 200 Gb/s roce'", 480.2, 349.6


def one(*rates: float, ranks: int = 8, gpu: str = H100, above: str = "", first: int = 8 * GIB, wrong: int = 0) -> str:
    return text(rates, ranks, gpu, above=above, first=first, wrong=wrong)


def card(above: str) -> str:
    return text((7.8, 8, 8.1, 8.1, 8.1), 2, L40S, each=1, above=above)


def rack(nodes: int, *rates: float) -> str:
    return text(rates, 4 * nodes, GB300, each=4)


def slow_in_place() -> str:
    """A log of which one row is slower in place only."""
    log = text((220, 225, 230, 232, 234), 4, each=4)
    (whole,) = [line for line in log.splitlines() if line.split()[:1] == [str(2 << 30)]]
    time, algbw, busbw = map(float, whole.split()[-4:-1])
    slow = f"{time * 1.42:.1f} {algbw / 1.42:.2f} {busbw / 1.42:.2f} 0"
    return log.replace(whole, f"{whole.rpartition(' 0 ')[0]} 0 {slow}")


PLAIN: dict[str, tuple[str, str]] = {
    # What a log lacks: operation, ranks, nodes, data.
    "two of sixteen ranks": (text(FAST, 16, program="[node-a] running a test", listed=(7, 15)), ""),
    "no rank, no program": (text(FAST, 16, program="", listed=()), HGX),
    "a program without hyphen": (text(FAST, 16, program="$ mpirun ./allreduce_perf", listed=(0, 1, 15)), ""),
    "a program in capitals": (text(FAST, 16, program="AllReduce_perf", listed=(0, 15)), ""),
    "what was not verified in place was sent": (SENT.replace(" 0\n", " N/A\n"), ""),
    "what was verified was gathered": (SENT, ""),
    "the user says that it was sent": (SENT, "--op all_to_all"),
    "it was not reduced": (SENT, "--op all_reduce"), "nothing verified": (UNCHECKED, ""), "rows only": (BARE, ""),
    "rows of a machine": (BARE, HGX), "one rank": (ONE_RANK, ""),
    "960 ranks that nobody counts": (lines(OF_960, DIED), ""),
    "960 ranks": (OF_960, "--ranks 960"),
    "a list below one table belongs to the next": (lines(*LISTS), ""),
    "data not checked": (text(FAST, 16, above="# nThread 1 nGpus 1 validation: 0"), ""),
    "data checked": (text(FAST, 16, above="# nThread 1 nGpus 1 validation: 1"), ""),
    "wrong data in the summary": (OLD, ""),
    "right data in the summary": (OLD.replace("2 FAILED", "0 OK"), ""),
    "a row that another writer broke": (BROKEN, ""),
    "another average": (text(FAST, 16, average=99.0), ""),
    # How it ended.
    "whole": (WHOLE, ""),
    "cut between rows": (PART, ""),
    "hung in a row": (PART + "  8589934592   2147483648 float sum -1", ""),
    "killed": (PART + KILLED, ""),
    "killed after its end": (WHOLE + KILLED, ""),
    "no system": (
        lines(HEAD, "n0: Test CUDA failure common.cu:1048 'system not yet initialized'", " .. n0 pid 7: Test failure"),
        "",
    ),
    "no NVML": (lines(HEAD, "n0:7:7 [0] misc/ibvwrap.cc:94 NCCL WARN Failed to open libibverbs.so[.1]",
              "n0:7:7 [0] misc/nvmlwrap.cc:74 NCCL WARN Failed to open libnvidia-ml.so.1", UNHANDLED,
              "n1:7:7 [0] transport.cc:1 NCCL WARN Call to connect failed"), ""),
    "a crash in the first row": (lines(HEAD, HEADER, CRASHED, " .. n0 pid 7: Test failure common.cu:519"), ""),
    "no row": (HEAD, ""), "the next table failed before its first row": (lines(WHOLE, HEAD, HEADER, DIED), ""),
    # What was assumed, and what is known.
    "slow over assumed NICs": (text(SLOW, 16), ""),
    "slow over known NICs": (text(SLOW, 16), "--machine '8 x H200, 8 x 400 Gb/s ib'"),
    "no NIC is so slow": (text((2, 3, 4, 4.2, 4.3), 2, "NVIDIA GB10", 1), ""),
    "no NIC is so fast": (text((10, 12, 14, 14.5, 14.9), 2, "NVIDIA GB10", 1), ""),
    "two NICs in NCCL's line": (text(FAST, 16, above=TWO_NICS), ""),
    "sockets in NCCL's line": (text((3, 3, 3, 3, 3), 16, above="n0:1:1 [0] NCCL INFO Using network Socket"), ""),
    "faster than the usual box": (text((42, 43, 43.5, 43.8, 43.9), 8, RTX5090), ""),
    "faster than the box": (text((42, 43, 43.5, 43.8, 43.9), 8, RTX5090), "--machine '8 x RTX 5090, P2P'"),
    "racks apart": (RACKS, ""), "racks apart by option": (RACKS, "--domains 4"),
    "racks that do not divide": (RACKS, "--domains 3"), "a rack": (rack(18, 500, 600, 680, 740, 790), ""),
    "two racks": (rack(36, 500, 600, 680, 740, 790), ""),
    "two racks by option": (rack(36, 9, 9, 9, 9, 9), "--domains 2"),
    "GPUs without a name": (UNNAMED, ""),
    "GPUs named in the next table": (f"# nThread 1 nGpus 1 validation: 0\n{UNNAMED}{NAMED}", ""),
    "GPUs of two names in others": (UNNAMED + NAMED + OTHERS, ""),
    "cards are no NVSwitch": (text((186, 192, 195, 198, 200), 2, A100), ""),
    "a machine is held to more": (text((186, 192, 195, 198, 200), 2, A100), "--machine 'DGX A100'"),
    "two sentences": (text(FAST, 16, above="8x H200 or 8x B200", listed=()), ""),
    "no sentence": (text(FAST, 16, above="8x faster, 16x float", listed=()), ""),
    "a sentence": (text((330, 346, 357, 360, 362), 4, above="my 4x H200 box", listed=()), ""),
    "a sentence of nodes": (text(FAST, 16, above="on 2 nodes of 8 \u00d7 NVIDIA H200", listed=()), ""),
    "a small row": (SMALL, ""),
    "a small row of a machine": (SMALL, "--machine 'HGX H200'"),
    # GPUs.
    "switches that cannot add": (text((332, 346, 354, 358, 361), 8, above=NO_MULTICAST), ""),
    "switches that never add": (text((220, 226, 230, 232, 233), 8, A100, above=NO_MULTICAST), ""),
    "H800": (text((200, 205, 210, 213, 215), 8, "NVIDIA H800"), ""),
    "slow H800": (text((155, 160, 162, 162, 162), 8, "NVIDIA H800"), ""),
    "through host memory": (text((9.2, 9.4, 9.5, 9.6, 9.6), 4, L40S, each=2),
                            "--machine '2 x L40S, 2 sockets, no P2P, 2 NICs x 200 Gb/s roce'"),
    "cards that share a NIC": (text((9.6,) * 5, 4, L40S, each=2),
                               "--machine '2 x L40S, 1 socket, 1 NIC x 100 Gb/s roce'"),
    "cards at a third of a NIC": (text((3.2,) * 5, 4, L40S, each=2),
                                  "--machine '2 x L40S, 1 socket, 1 NIC x 100 Gb/s roce'"),
    "two ranks on a GPU": (SHARED, ""),
    "two ranks on two GPUs": (APART, ""),
    "a bus without its domain": (SHARED.replace("0000:02:00", "0x02"), ""),
    "a node of other GPUs": (lines("all_reduce_perf", MIXED, HEADER, rows((1.1,) * 5, 4)), ""),
    "GPUs of AMD": (AMD[0], ""),
    "GPUs of AMD without processes": (AMD[1], HGX[:21]),
    # Verdicts on rows of a machine that is named.
    "healthy": (one(NVLS), DGX), "a third": (one(NVLS, NVLS / 3), f"{DGX} --nodes 1"), "a ring": (one(RING), DGX),
    "a ring by option": (one(RING), f"{DGX} --algo ring"),
    "a ring in the log": (one(RING, above="n0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring."), DGX),
    "nothing judges": (text((9.5,), 2, L40S, first=8 * GIB), "--machine g6e.12xlarge --nodes 1"),
    "small, two nodes": (one(0.0393, ranks=16, first=1 << 20), f"{DGX} --nodes 2"),
    "wrong data": (one(NVLS, wrong=3), DGX),
    "more ranks than GPUs": (one(NVLS, ranks=16), f"{DGX} --nodes 1"),
    "uneven nodes": (one(NVLS, ranks=16), f"{DGX} --nodes 3"),
    "faster than the links": (one(NVLS, gpu=""), "--machine dgx-a100"),
    "no faster than the links": (one(NVLS, gpu=""), DGX),
    "a gross loss of GB300": (text((33.0,), 8, GB300, first=4 * GIB), "--machine 'GB300 NVL72' --nodes 2"),
    "a gross loss of GH200": (text((5.4,), 8, "NVIDIA GH200 120GB", first=4 * GIB), "--machine 'Alps GH200' --nodes 2"),
    "rows that nothing judges pass no gate": (one(0.0007, first=8), f"{DGX} --require-judged"),
    # Without a machine.
    "healthy H100": (one(NVLS), ""),
    "slow H100": (one(NVLS / 3), ""),
    "slow H100, two nodes": (one(NVLS / 6, ranks=16), ""),
    "wrong data, two nodes": (one(NVLS, ranks=16, wrong=3), ""),
}  # fmt: skip
MADE = [
    # Lists that were cut: boards have the usual size, cards and odd numbers are not guessed.
    *(
        (text((90, 100, 106, 110, 113), ranks, gpu, each, listed=listed), "")
        for gpu, ranks, listed, each in (
            *((A100, 32, range(5), 8), (A100, 32, range(2), 8), (A100, 16, range(5), 8), (A100, 32, range(8), 8)),
            *((A100, 16, (0, 7, 8, 15), 8), (A100, 8, range(5), 8), (GB300, 16, (15,), 4), (L40S, 32, range(5), 8)),
            (A100, 12, range(5), 8),
        )
    ),
    # A machine that the text names is taken if it has such GPUs.
    *(
        (text((213, 264, 298, 318, 331), 16, H100, above=above), "")
        for above in (
            *("two of a3-megagpu-8g here", "two of A3_megagpu 8g here", "two p4d.24xlarge here"),
            *("a3-megagpu-8g, or p5.48xlarge", "a3-megagpu-8gb"),
        )
    ),
    # Settings that a command line or a line of NCCL shows have a cost, which is a finding; others are no settings.
    *(
        (card(above), ONE_L40S)
        for above in (
            "mpirun -np 2 -x NCCL_IB_DISABLE=1 -x NCCL_SOCKET_IFNAME=eth0 ./all_reduce_perf",
            "export NCCL_IB_DISABLE=1", "$ NCCL_DEBUG=INFO NCCL_IB_DISABLE=1 ./all_reduce_perf -g 1",
            "CUDA_VISIBLE_DEVICES=0,1 NCCL_IB_DISABLE=1 ./all_reduce_perf -g 1",
            "srun --export=ALL,NCCL_DEBUG=INFO,NCCL_IB_DISABLE=1 ./all_reduce_perf",
            "docker run -e NCCL_IB_DISABLE='1' image", "a:12:12 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
            *("# export NCCL_IB_DISABLE=1", "echo try it with NCCL_IB_DISABLE=1 if this hangs"),
            *("export NCCL_IB_DISABLE=0", "export NCCL_NET=Socket"),
        )
    ),
    # Dips, falls and jumps are named, and a smooth sweep has none.
    *(
        (text(rates, 16, "NVIDIA H100 NVL"), "")
        for rates in (
            *((9.8, 10, 3.6, 9.9, 10), (9.8, 10, 3.6, 3.5, 10), (9.8, 10, 3.6, 3.5, 3.4), (3, 3, 9.5, 3.1, 3)),
            *((3, 4.11, 2.846, 5.49, 6), (3, 4.11, 3.3, 5.49, 6), (3, 4.11, 2.9, 3.9, 5)),
            *((5, 8, 10, 10, 10), (10, 9, 8, 7.5, 7)),
        )
    ),
    (slow_in_place(), ""),
    # A setting of one run is not one of the next, and an export is.
    (card("mpirun -x NCCL_IB_DISABLE=1 all_reduce_perf") + card(""), ONE_L40S),
    (card("export NCCL_IB_DISABLE=1") + card(""), ONE_L40S),
    # A log of other GPUs than the machine's is refused, and one of its own GPUs is judged whatever their memory.
    *(
        (one(1.9, gpu=gpu, first=GIB), f"--machine '{machine}'")
        for machine, gpu in (
            ("dgx-a100", H100),
            ("8 x H200", H100),  # of equal links
            ("dgx-h100", H100_PCIE),
            ("dgx-h100", "NVIDIA RTX 9999"),
            ("8 x RTX PRO 6000", "NVIDIA RTX 6000 Ada Generation"),
            ("dgx-a100", "NVIDIA A100-SXM4-40GB"),  # another memory
            ("dgx-a100", "A100-SXM-80GB"),  # as older drivers write it
            ("8 x V100-SXM2", "Tesla V100-SXM2-32GB"),
            ("dgx-h100", "NVIDIA Graphics Device"),  # says nothing
            ("8 x H20", "NVIDIA H20-3e"),
            ("8 x RTX 4090", "NVIDIA GeForce RTX 4090"),
        )
    ),
]  # fmt: skip
OF_A3, TOO_FAST, OF_A100 = (213, 264, 298, 318, 331), (942, 943, 943, 943, 943), (90, 100, 106, 110, 113)
OF_TRAY = (560, 640, 700, 740, 760)
MORE: dict[str, tuple[str, str]] = {
    # Logs that differ in one thing: GPUs, nodes, settings, domains, ends.
    "a file of another release": (one(NVLS), f"{CAPTURES}/hgx-h100.jsonl --nccl 2.19.3"),
    "three in the text, of four ranks": (text(FAST, 4, above="my 3x H200 box", listed=()), ""),
    "two in the text, of six ranks": (text(FAST, 6, above="my 2x H200 box", listed=()), ""),
    "the text is too long": ("#" * (1 << 18) + "\n" + text(FAST, 4, above="my 4x H200 box", listed=()), ""),
    "TCP without a machine": (text((3, 3, 3, 3, 3), 16, above="export NCCL_IB_DISABLE=1"), ""),
    "TCP, GPUs not named": (lines("export NCCL_IB_DISABLE=1", BARE), ""),
    "TCP of a machine with sockets": (card("export NCCL_IB_DISABLE=1"),
                                      "--machine '1 x L40S, 1 NIC x 100 Gb/s sockets'"),
    "TCP of a machine with Omni-Path": (card("export NCCL_IB_DISABLE=1"), "--machine '1 x L40S, 1 NIC x 100 Gb/s opa'"),
    "TCP and another setting": (card("NCCL_ALGO=Ring NCCL_IB_DISABLE=1 ./all_reduce_perf"), ONE_L40S),
    "another setting": (card("NCCL_ALGO=Ring NCCL_PROTO=Simple ./all_reduce_perf"), ONE_L40S),
    "no multicast, GPUs not named": (lines(NO_MULTICAST, BARE), ""),
    "no multicast and a setting": (one(RING, above=f"{NO_MULTICAST}\nNCCL_ALGO=Ring ./all_reduce_perf"), DGX),
    "too fast between nodes": (text((142, 143, 143.5, 143.8, 143.9), 16, RTX5090),
                               "--machine '8 x RTX 5090' --nodes 2"),
    "too fast for any box": (text(TOO_FAST, 8, RTX5090), "--machine '8 x RTX 5090, P2P'"),
    "too fast for two sockets": (text((42, 43, 43, 43, 43), 8, RTX5090), "--machine '8 x RTX 5090, 2 sockets, no P2P'"),
    "too fast for a named type": (text(TOO_FAST, 8, H100), DGX),
    "too fast, not named": (text(TOO_FAST, 8, RTX5090), ""),
    "a cut list, nodes given": (text(OF_A100, 32, A100, listed=range(5)), "--nodes 4"),
    "a list of two nodes": (text(OF_A100, 16, A100, listed=(0, 1, 2, 3, 4, 8, 9, 10)), ""),
    "seventeen in a node": (text(FAST, 17, each=17), ""), "sixteen in a node": (text(FAST, 16, each=16), ""),
    "nine in a cut node": (text(FAST, 9, each=9, listed=range(5)), ""),
    "uneven nodes of a list": (text(FAST, 12, each=8), ""), "uneven by option": (text(FAST, 16), "--nodes 3"),
    "wrong rows and a wrong sum": (text(FAST, 16, wrong=2).replace("values : 0 OK", "values : 9 FAILED"), ""),
    "only a wrong sum": (WHOLE.replace("values : 0 OK", "values : 9 FAILED"), ""),
    "NICs not given": (text(FAST, 16), "--machine '8 x H200'"),
    "NICs not given, nodes by option": (BARE, "--machine '8 x H200' --nodes 2"),
    "NICs not given, TCP": (lines("n0:1:1 [0] NCCL INFO Using network Socket", BARE), "--machine '8 x H200' --nodes 2"),
    "fewer GPUs than the machine of the text": (text(OF_A3, 4, H100, above="an a3-megagpu-8g", each=4), ""),
    "more GPUs than the machine of the text": (text(OF_A3, 16, H100, above="an a3-megagpu-8g", each=16), ""),
    "other GPUs than the machine of the text": (text(OF_A3, 8, H200, above="an a3-megagpu-8g"), ""),
    "domains of one node": (RACKS, "--domains 1"), "as many domains as may be": (RACKS, "--domains 4096 --nodes 4096"),
    "too many": (RACKS, "--domains 4097 --nodes 4097"), "a rack on one node": (text(OF_TRAY, 4, GB300, each=4), ""),
    "a named rack on one node": (text(OF_TRAY, 4, GB300, each=4), "--machine 'GB300 NVL72' --nodes 1"),
    "a named rack, apart": (RACKS, "--machine 'GB300 NVL72'"),
    "a named rack, by domains": (RACKS, "--machine 'GB300 NVL72' --domains 4"),
    "slow only below 1 GiB": (text((100, 110, 438, 450, 455), 16), ""),
    "slow below 1 GiB only": (lines(*WHOLE.splitlines()[:18], HEADER, rows((20, 22), 16)), ""),
    "a dip that no NIC explains": (text((300, 400, 60, 450, 455), 16), ""),
    "two devices in a node": (text(FAST, 16).replace("NVIDIA H200", "NVIDIA H100 NVL", 8), ""),
    "a GPU with x in its name": (text(FAST, 8, "NVIDIA A x B"), ""),
    "operation given": (lines(rows((250,) * 3, 16)), f"{HGX} --op all_gather"),
    "ranks given": (lines(OF_960), "--ranks 480"), "both given": (lines(OF_960), "--ranks 480 --op reduce_scatter"),
}  # fmt: skip
LOGS = PLAIN | {f"{number} {options}".strip(): (log, options) for number, (log, options) in enumerate(MADE)} | MORE
"""What is said of each is in tests/data/command_values/logs.txt."""


@each_row("name", ["slow over assumed NICs", "no NIC is so slow", "slow H100, two nodes"])
def test_a_row_warns_and_never_fails_by_assumed_nics(name: str, tmp_path: Path) -> None:
    said = "\n".join(told(tmp_path, *LOGS[name]))
    assert ("exit 0 0" in said, " is fail" in said, "would pass" in said) == (True, False, True)


LINES = WHOLE.splitlines()
WRAPPED = [line[at : at + 50] for line in LINES for at in range(0, len(line), 50)]
MARKS: dict[str, Callable[[int, str], str]] = {
    "mpirun": lambda n, line: f"[1,{n % 16}]<stdout>:{line}", "srun": lambda n, line: f" {n % 16}: {line}",
    "kubectl": lambda n, line: f"[pod/nccl-test-launcher-x7/mpi] {line}",
    "kubelet": lambda n, line: f"2026-03-0{1 + n % 9}T10:00:00.123456789Z stdout F {line}",
    "compose": lambda n, line: f"nccl-1  | {line}",
    "kubectl and mpirun": lambda n, line: f"[pod/a/mpi] [1,0]<stdout>: {line}",
    "Ray and mpirun": lambda n, line: f"(head, rank=0, pid=3808) [1,0]<stdout>:{line}",
    "colours": lambda n, line: f"\x1b[32m{line}\x1b[0m", "DOS": lambda n, line: line + "\r",
    "a heading of each comment": lambda n, line: line.lstrip("#"),
    "Open MPI 5": lambda n, line: f"[prterun-n0-71@1,0]<stdout>: {line}",
    "Python's logging": lambda n, line: f"2026-11-02 10:11:{n:02},345 - INFO - {line}",
    "syslog": lambda n, line: f"Nov  2 10:11:{n:02} n0 nccl[123]: {line}",
    "numbered lines": lambda n, line: f"{n:4} {line}",
    "CSV": lambda n, line: ",".join(line.split()) if line[:1] != "#" or " size " in line else line,
    "a table of Markdown": lambda n, line: (
        "| " + " | ".join(line.split()) + " |" if line[:1] != "#" or " size " in line else line
    ),
    "decimal commas": lambda n, line: line.replace(".", ",") if line[:1] == " " else line,
}  # fmt: skip
PASTED = {
    **{name: ([mark(n, line) for n, line in enumerate(LINES)], "") for name, mark in MARKS.items()},
    "wrapped": (WRAPPED, HGX),
    "wrapped, without what ends in blanks": ([line.rstrip() for line in WRAPPED], HGX),
    "NCCL's lines inside rows": (
        [part for line in LINES for part in ([line[:48], NCCL_LINE, line[48:]] if line[:1] == " " else [line])], HGX
    ),
    "without the header": ([line for line in LINES if line != HEADER], HGX),
}  # fmt: skip


@each_row(("log", "options"), PASTED.values(), ids=PASTED)
def test_a_table_is_read_however_it_was_pasted(log: list[str], options: str, tmp_path: Path) -> None:
    assert "headline: 10 rows measured, 10 judged: 10 pass" in told(tmp_path, lines(log), options)


@each_row(
    ("log", "title"),
    [
        (WHOLE, "PASS · 10 rows measured, 10 judged: 10 pass"),
        (text(SLOW, 16), "WARN · 10 rows measured"),
        (BARE, "UNKNOWN · 10 rows measured, none judged"),
        (lines(BARE, DIED), "FAIL · 10 rows measured, none judged; 2 findings; the run reports: n1: Test NCCL"),
    ],
)
def test_the_page_is_headed_by_the_worst_row_and_none_judged_is_unknown(log: str, title: str, tmp_path: Path) -> None:
    path, page = tmp_path / "log.txt", tmp_path / "page.html"
    path.write_text(log)
    assert expect.main(("--judge", str(path), "--html", str(page))) == (4 if DIED in log else 0)
    assert title in html.unescape(page.read_text())


def test_a_page_has_the_measured_dots_on_the_expected_curve_and_one_without_a_log_has_the_curve(tmp_path: Path) -> None:
    log, page = Path(__file__).parents[1] / "data/nccl_tests/all_reduce.txt", tmp_path / "page.html"
    assert expect.main(("--judge", str(log), "--machine", "dgx-h100", "--html", str(page))) == 4
    whole = page.read_text()
    assert whole.count("<circle") >= 4  # two pictures of three rows, and the one that fails is a cross
    assert all(each in whole for each in ('class="band', "1 of 3 measured rows fail", "exit code 4"))
    assert "0 nodes" not in whole
    assert expect.main(("--machine", "dgx-h100", "--html", str(page))) == 0
    curve = page.read_text()
    assert all(each in curve for each in ("Expected of DGX H100, 8 ranks", "Nothing was measured", 'class="band'))
    assert (curve.count("<svg"), curve.count("<tr>") > 12) == (2, True)


def test_the_text_names_tables_and_a_gate_gets_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(log: str, options: str) -> tuple[int, str]:
        (tmp_path / "run.log").write_text(log)
        code = expect.main(("--judge", str(tmp_path / "run.log"), *shlex.split(options)))
        return code, capsys.readouterr().out

    _, two = printed(WHOLE + text(SLOW, 16, program="# nThread 1 all_reduce_perf"), "")
    heads = [line[:33] for line in two.splitlines() if line.startswith("---")]
    assert heads == ["--- all_reduce on 16 ranks, line "] * 2
    code, whole = printed(one(NVLS), DGX)
    assert code == 0
    assert all(words in whole for words in ("2 rows measured, 2 judged: 2 pass", "threshold", "https://"))
    none = printed(one(0.0007, first=8), f"{DGX} -q")
    assert (none[0], none[1].count("\n")) == (0, 1)
    assert none[1].startswith("2 rows measured, none judged; ")
    assert printed(one(0.0007, first=8), f"{DGX} -q --require-judged") == (3, none[1])
    assert [printed(one(rate), f"{DGX} -q --require-judged")[0] for rate in (NVLS, NVLS / 3)] == [0, 4]


@each_row(
    ("argv", "log"),
    [
        *(((*option, "--machine", "dgx-h100"), WHOLE) for option in (("--op", "broadcast,reduce"), ("-b", "1K"))),
        (("--gpus-per-node", "4", "--machine", "dgx-h100"), WHOLE),
        *(((), log) for log in ("", "{", '{"schema": "other"}', "size count type\n", "\x00\xff", None)),
        *(((option,), "not judged") for option in ("-q", "--require-judged")),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(
    argv: tuple[str, ...], log: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    if log is not None:
        path.write_text(log)
    judge = [] if log == "not judged" else ["--judge", str(path)]
    assert program(["expect", *judge, *argv]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    wanted = "does not apply without --judge FILE" if not judge else "does not apply|give one of" if argv else "log: "
    assert re.search(wanted, said.err)
