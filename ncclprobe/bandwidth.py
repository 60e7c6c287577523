"""``torchrun -m ncclprobe.bandwidth``: measure collectives across ranks, judge the numbers, report.

Works under torchrun, srun and mpirun, with RANK and WORLD_SIZE set by hand, and by itself with ``--nproc N``.
Usage is settled before torch is imported; rank 0 alone speaks.
"""

import argparse
import difflib
import json
import os
import re
import socket
import sys
import time
import warnings
import zlib
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from ncclprobe import output, ranks, selflaunch
from ncclprobe.errors import HostError, ProbeError, UsageError
from ncclprobe.expect import bands
from ncclprobe.facts.launcher import Launch, detect
from ncclprobe.host import Host
from ncclprobe.ledger import Ledger, Party
from ncclprobe.ops import DTYPES, OPS, REDOPS, sizes
from ncclprobe.progress import Progress
from ncclprobe.report import json as as_json
from ncclprobe.units import parse_size
from ncclprobe.watch import Limits, Watch, leave

EXIT_USAGE = 2
ONE_RANK = (
    "one rank moves no byte between GPUs, so there was nothing to measure; start one rank per GPU: "
    "torchrun --nproc-per-node=gpu -m ncclprobe.bandwidth, or ncclprobe bandwidth --nproc N"
)
_FIRST_WORD_S = 1.0  # torchrun ends rank 0 as soon as another rank has ended: let it speak first
_SLACK_S = 30.0  # torch's own deadlines come this much after ours, so that ours names the rank


class _Parser(argparse.ArgumentParser):
    """A parser that leaves the speaking to main(): under a launcher every rank makes the same mistake."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see ncclprobe bandwidth --help")


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; returns the exit code. Raises UsageError, on rank 0 only."""
    launch = detect(os.environ)
    try:
        options = _parser().parse_args(argv)
        _complete(options)
        expected = _expected(options.expect, options.tolerance)
        if options.nproc is not None and selflaunch.VERDICT_FILE not in os.environ:
            return _start_ranks(options, argv, launch)
        seat = ranks.seat(launch, os.environ)
        if seat is None or seat.ranks == 1:
            return _alone(options, argv, launch)
        host = _this_host()
        backend = ranks.choose_backend(options.backend, seat.kind, seat.local_ranks, _devices(host))[0]
        return _Rank(options, argv, seat, host, expected, backend).run()
    except UsageError:
        if launch.rank and not launch.problems:
            time.sleep(_FIRST_WORD_S)
            return EXIT_USAGE
        raise


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ncclprobe bandwidth", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--op", default="all_reduce", metavar="NAME[,NAME]", help=f"{', '.join(OPS)}, or all (%(default)s)")
    add("-b", dest="begin", default="8", metavar="SIZE", help="smallest message, with binary K, M, G (%(default)s)")
    add("-e", dest="end", default="128M", metavar="SIZE", help="largest message (%(default)s)")
    add("-f", dest="factor", type=int, default=4, metavar="N", help="each size is N times the one before (%(default)s)")
    add("-n", dest="iters", type=int, default=20, metavar="N", help="timed calls per batch (%(default)s)")
    add("-w", dest="warmup", type=int, default=5, metavar="N", help="untimed calls per size before all (%(default)s)")
    add(
        "--batches",
        type=int,
        default=5,
        metavar="N",
        help="batches per row, the samples of the statistics (%(default)s)",
    )
    add("--dtype", default="float32", metavar="TYPE", help=f"{', '.join(DTYPES)} (%(default)s)")
    add("--redop", default="sum", metavar="OP", help=f"{', '.join(REDOPS)} (%(default)s)")
    add("--mode", choices=("queued", "blocking"), help="calls back to back, or one by one (queued; gloo: blocking)")
    add("--backend", choices=("nccl", "gloo"), help="default: nccl with a GPU per rank, else gloo, which exits 3")
    add("--nproc", type=int, metavar="N", help="start N ranks on this node")
    add("--expect", metavar="FILE", help="judge by these bands: TOML, or an earlier JSON report")
    add("--tolerance", type=bands.parse_tolerance, default=bands.TOLERANCE, metavar="SHARE",
        help="how far below its expectation a number may lie where the file does not say (%(default)s)")  # fmt: skip
    add("--report-only", action="store_true", help="numbers that nothing judges are no reason for exit code 3")
    add("--timeout", type=float, default=120.0, metavar="SECONDS", help="of the whole run (%(default)g)")
    add(
        "--phase-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="of one batch or one start-up step (%(default)g)",
    )
    output.arguments(parser)
    return parser


def _complete(options: argparse.Namespace) -> None:
    """Turn texts into values, refusing what no sweep could be made of. Raises UsageError."""
    names = list(OPS) if options.op == "all" else list(dict.fromkeys(options.op.split(",")))
    choices: list[tuple[str, str, Collection[str]]] = [("--op", name, OPS) for name in names]
    for option, given, known in (*choices, ("--dtype", options.dtype, DTYPES), ("--redop", options.redop, REDOPS)):
        if given not in known:
            near = difflib.get_close_matches(given, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            raise UsageError(f"{option} {given!r} is unknown; {hint}")
    options.ops = tuple(names)
    options.sizes = sizes(parse_size(options.begin), parse_size(options.end), options.factor)
    counts = (("-n", options.iters, 1), ("-w", options.warmup, 0), ("--batches", options.batches, 1))
    for option, number, least in (*counts, ("--nproc", options.nproc, 1)):
        if number is not None and number < least:
            raise UsageError(f"{option} {number}: must be at least {least}")
    for option, number in (("--timeout", options.timeout), ("--phase-timeout", options.phase_timeout)):
        if not 0 < number < float("inf"):
            raise UsageError(f"{option} {number:g}: must be a number of seconds above zero")


def _expected(path: str | None, tolerance: float) -> tuple[bands.Band, ...]:
    """What the file at `path` expects: an earlier report if it is JSON, else TOML. Raises UsageError."""
    if path is None:
        return ()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--expect {path}: cannot be read: {error}") from None
    if text.lstrip().startswith("{"):
        return bands.from_report(as_json.read(path), path, tolerance)
    return bands.from_toml(text, path, tolerance)


def _start_ranks(options: argparse.Namespace, argv: Sequence[str], launch: Launch) -> int:
    if launch.kind != "none":
        raise UsageError(f"--nproc starts ranks of its own, but {launch.kind} has started this one; leave --nproc out")
    if options.nproc == 1:
        return _alone(options, argv, launch)
    ranks.choose_backend(options.backend, "torchrun", options.nproc, _devices(_this_host()))
    return selflaunch.launch(options.nproc, argv, options.timeout)


def _alone(options: argparse.Namespace, argv: Sequence[str], launch: Launch) -> int:
    ledger = Ledger(options, argv, Party(launch.kind, 1, (socket.gethostname(),), options.backend or "nccl"), ())
    ledger.doubt(ONE_RANK)
    return ledger.close()


def _this_host() -> Host:
    from ncclprobe.live import LiveHost
    from ncclprobe.nccl.parameters import looks_like_ours, table

    return LiveHost(table().keys(), looks_like_ours)


def _devices(host: Host) -> ranks.Devices:
    """The NVIDIA devices of this node as /dev shows them, without asking the driver."""
    try:
        names = json.loads(host.ask("list", "/dev"))
    except HostError:
        return ranks.Devices(0)
    return ranks.Devices(sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names))


class _Rank:
    """One rank's part in a run, from meeting the others to the verdict."""

    def __init__(
        self,
        options: argparse.Namespace,
        argv: Sequence[str],
        seat: ranks.Seat,
        host: Host,
        expected: Sequence[bands.Band],
        backend: ranks.Backend,
    ) -> None:
        self._options, self._seat, self._host = options, seat, host
        self._hostname = socket.gethostname()
        progress = Progress(wanted=seat.rank == 0 and not options.quiet)
        party = Party(seat.kind, seat.ranks, (self._hostname,), backend, nnodes=seat.nnodes)
        self._ledger = Ledger(options, argv, party, expected, progress)
        spent = time.time() - float(os.environ.get(selflaunch.STARTED, time.time()))
        limits = Limits(time.monotonic() + options.timeout - spent, options.phase_timeout)
        self._watch = Watch(seat, self._hostname, limits, self._ledger.close, progress.show)

    def run(self) -> NoReturn:
        """Measure with the others and leave with rank 0's exit code. Raises UsageError, then on every rank."""
        if self._seat.rank == 0:
            self._ledger.save()  # a path that cannot be written is found out now
        self._watch.start()
        try:
            code = self._measure()
        except (ProbeError, RuntimeError) as error:  # torch raises RuntimeError for a peer that is gone
            self._watch.failed(str(error).strip().partition("\n")[0])
        finally:
            self._watch.stop()
        leave(code)

    def _measure(self) -> int:
        torch = self._torch()
        self._watch.beat(f"reach the store at {self._seat.address}:{self._seat.port}")
        self._store = ranks.connect(self._seat, serve=self._seat.serves, timeout_s=self._options.phase_timeout)
        self._watch.attach(ranks.connect(self._seat, serve=False, timeout_s=self._options.phase_timeout))
        self._watch.beat("wait for the other ranks")
        exchange = ranks.Exchange(self._store, self._seat, self._options.phase_timeout + _SLACK_S)
        terms = self._settle(exchange, torch)
        self._open_group(terms["backend"])
        self._sweep(exchange, terms)
        self._watch.beat("close the process group")
        torch.distributed.destroy_process_group()
        self._watch.beat("verdict")
        code = exchange.share(self._ledger.close() if self._seat.rank == 0 else None)
        exchange.collect(None)  # rank 0 may serve the store, so it leaves last
        return int(code)

    def _torch(self) -> Any:
        self._watch.beat("import torch")
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # torch would abort rank 0 before it has reported
        if not self._options.verbose:
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # its stack traces would bury the report
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*NumPy", category=UserWarning)  # torch without numpy
            try:
                import torch.distributed
            except ImportError as error:
                raise UsageError(f"torch cannot be imported ({error}); install ncclprobe[torch]") from None
        return torch

    def _settle(self, exchange: ranks.Exchange, torch: Any) -> dict[str, Any]:
        """Agree on what is measured with. Raises UsageError on all ranks where they cannot."""
        cards = exchange.collect(self._card(torch))
        terms = exchange.share(_terms(cards, self._seat.nnodes) if cards else None)
        if cards and not terms["error"]:
            hosts = tuple(card["host"] for card in cards)
            backend = terms["backend"]
            self._ledger.party = Party(
                self._seat.kind, self._seat.ranks, hosts, backend, cards[0]["versions"], terms["nodes"]
            )
            self._ledger.met = True
            if terms["remark"]:
                self._ledger.doubt(terms["remark"])
        exchange.collect(None)
        if terms["error"]:
            raise UsageError(terms["error"])
        return dict(terms)

    def _card(self, torch: Any) -> dict[str, Any]:
        """What this rank tells the others of itself before anything is measured."""
        usable = torch.cuda.device_count()
        devices = ranks.Devices(_devices(self._host).nodes, usable, torch.__version__)
        self._device = ranks.device_index(self._seat, usable)
        card: dict[str, Any] = {
            "host": self._hostname,
            "gpu": None,
            "backend": None,
            "remark": "",
            "error": "",
            "plan": self._plan_digest(),
        }
        try:
            card["backend"], card["remark"] = ranks.choose_backend(
                self._options.backend, self._seat.kind, self._seat.local_ranks, devices
            )
        except UsageError as error:
            card["error"] = str(error)
        if card["backend"] == "nccl":
            card["gpu"] = str(getattr(torch.cuda.get_device_properties(self._device), "uuid", self._device))
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
        card["versions"] = {"torch": torch.__version__, "nccl": ".".join(map(str, nccl)) if nccl else None}
        return card

    def _plan_digest(self) -> int:
        """Ranks started with different options would wait for each other for ever."""
        names = ("ops", "sizes", "iters", "warmup", "batches", "dtype", "redop", "mode")
        return zlib.crc32(repr([getattr(self._options, name) for name in names]).encode())

    def _open_group(self, backend: str) -> None:
        import torch
        import torch.distributed as dist

        self._watch.beat("init_process_group")
        if backend == "nccl":
            torch.cuda.set_device(self._device)
        store = ranks.connect(self._seat, serve=False, timeout_s=self._options.phase_timeout)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(ranks.key(self._seat, "group"), store),
            rank=self._seat.rank,
            world_size=self._seat.ranks,
            timeout=timedelta(seconds=self._options.phase_timeout + _SLACK_S),
        )

    def _sweep(self, exchange: ranks.Exchange, terms: Mapping[str, Any]) -> None:
        from ncclprobe.probes import sweep

        options = self._options
        plan = sweep.Plan(
            ops=options.ops,
            sizes=options.sizes,
            rank=self._seat.rank,
            ranks=self._seat.ranks,
            nodes=terms["nodes"],
            backend=terms["backend"],
            device=f"cuda:{self._device}" if terms["backend"] == "nccl" else "cpu",
            dtype=options.dtype,
            redop=options.redop,
            iters=options.iters,
            warmup=options.warmup,
            batches=options.batches,
            mode=options.mode or "queued",
        )
        for row in sweep.run(plan, exchange, self._watch.beat, host=self._host):
            if self._seat.rank:
                continue
            if isinstance(row, sweep.Skipped):
                self._ledger.remark(f"{row.op} was skipped: {row.why}")
            else:
                self._ledger.add(row)


def _terms(cards: Sequence[Mapping[str, Any]], nnodes: int) -> dict[str, Any]:
    """What all ranks do, or the error for which none does. Containers on several nodes may share one host name."""
    return {
        "error": next((card["error"] for card in cards if card["error"]), "") or _disagreement(cards),
        "backend": cards[0]["backend"],
        "nodes": max(nnodes, len({card["host"] for card in cards})),
        "remark": cards[0]["remark"],
    }


def _disagreement(cards: Sequence[Mapping[str, Any]]) -> str:
    first, seen = cards[0], dict[tuple[str, str], int]()
    for rank, card in enumerate(cards):
        if card["backend"] != first["backend"]:
            return (
                f"rank 0 on {first['host']} would measure {first['backend']} and rank {rank} on {card['host']} "
                f"{card['backend']}; give every node its GPUs, or ask for --backend gloo"
            )
        if card["plan"] != first["plan"]:
            return f"rank {rank} on {card['host']} was started with other options than rank 0; start all alike"
        other = seen.setdefault((card["host"], card["gpu"]), rank) if card["gpu"] is not None else rank
        if other != rank:
            return (
                f"ranks {other} and {rank} on {card['host']} have the same GPU; start one rank per GPU "
                "(--nproc-per-node=gpu), or ask for --backend gloo"
            )
    return ""


if __name__ == "__main__":
    from ncclprobe.__main__ import main as run

    sys.exit(run(["bandwidth", *sys.argv[1:]]))
