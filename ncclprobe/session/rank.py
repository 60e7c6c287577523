"""One rank's part in a run, from meeting the others to the verdict."""

import json
import os
import re
import signal
import socket
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from ncclprobe.errors import HostError, ProbeError, UsageError
from ncclprobe.expect.bands import Band
from ncclprobe.host import Host
from ncclprobe.measured import Unmeasured
from ncclprobe.session import group, trail
from ncclprobe.session.ledger import Ledger, Party
from ncclprobe.session.options import Options
from ncclprobe.session.progress import Progress
from ncclprobe.session.seat import Backend, Devices, Seat, choose_backend, device_index
from ncclprobe.session.store import Exchange, connect, resolve
from ncclprobe.session.terms import Card, Terms, agree
from ncclprobe.session.trail import Trail
from ncclprobe.session.watch import Ending, Limits, Voices, Watch, leave

_SLACK_S = 30.0  # torch's own deadlines come this much after ours, so that ours names the rank


def devices(host: Host) -> Devices:
    """The NVIDIA devices of this node as /dev shows them, without asking the driver."""
    try:
        names = json.loads(host.ask("list", "/dev"))
    except HostError:
        return Devices(0)
    return Devices(sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names))


def _trail(rank: int, host: str) -> Trail | None:
    """Where this rank leaves its trace, if ``--nproc`` started it: it then ends with who started it."""
    folder = os.environ.get(trail.FOLDER)
    if folder is None:
        return None
    trail.end_with_parent(signal.SIGTERM)
    return Trail(folder, rank, host)


class Rank:
    """This process in a run: `run` is all of it."""

    def __init__(self, options: Options, seat: Seat, host: Host, expected: Sequence[Band], backend: Backend) -> None:
        self._options, self._seat, self._host = options, seat, host
        self._hostname = socket.gethostname()
        self._backend: Backend | None = None  # once its group is made
        self._broken = False  # whether this rank's part of the group hangs on a lost pair
        self._progress = Progress(wanted=seat.rank == 0 and not options.quiet)
        self._trail = _trail(seat.rank, self._hostname)
        party = Party(seat.kind, seat.ranks, (self._hostname,), backend, nnodes=seat.nnodes)
        self._ledger = Ledger(options, party, expected, self._progress)
        spent = time.time() - float(os.environ.get(trail.STARTED, time.time()))
        limits = Limits(time.monotonic() + options.timeout_s - spent, options.phase_timeout_s)
        words = self._trail.words if self._trail else None
        voices = Voices(self._conclude, self._ledger.keep, self._show_phase, words, self._abort)
        self._watch = Watch(seat, self._hostname, limits, voices)

    def run(self) -> NoReturn:
        """Measure with the others and leave with rank 0's exit code. Raises UsageError, then on every rank."""
        if self._seat.rank == 0:
            self._ledger.save()  # a path that cannot be written is found out now
        self._watch.start()
        try:
            code = self._measure()
        except UsageError as error:
            if self._seat.rank == 0:
                self._ledger.keep(Ending(why=str(error)))
            raise
        except group.Unmet as error:
            self._watch.failed(str(error), error.ranks)
        except (ProbeError, RuntimeError) as error:  # torch raises RuntimeError for a peer that is gone
            self._watch.failed(str(error).strip().partition("\n")[0])
        finally:
            self._watch.stop()
        leave(code)

    def _show_phase(self, phase: str) -> None:
        self._progress.show(phase)
        if self._trail:
            self._trail.phase(phase)

    def _measure(self) -> int:
        torch = self._torch()
        self._watch.beat(f"resolve the name of rank 0's host, {self._seat.address}")
        resolve(self._seat)
        self._watch.beat(f"reach the store at {self._seat.address}:{self._seat.port}")
        slack_s = self._options.phase_timeout_s + self._watch.late_s + _SLACK_S
        store = connect(self._seat, serve=self._seat.serves, timeout_s=slack_s)
        self._watch.attach(connect(self._seat, serve=False, timeout_s=slack_s), store)
        self._watch.beat("wait for the other ranks")
        exchange = Exchange(store, self._seat, slack_s)
        terms = self._settle(exchange, torch)
        group_s = self._open_group(terms.backend)
        device = f"cuda:{self._device}" if terms.backend == "nccl" else "cpu"
        self._first_calls(group_s, exchange, device)
        if self._options.pairs is None:
            self._sweep(exchange, terms, device)
        else:
            self._pairs(exchange, terms, device)
        self._watch.beat("close the process group")
        if self._broken:
            self._abort()  # to close it in good order would wait for the pair that is lost
        else:
            torch.distributed.destroy_process_group()
        self._watch.beat("verdict")
        exchange.collect(None)  # a rank that is lost on its way here is still a lost rank
        code = exchange.share(self._ledger.close() if self._seat.rank == 0 else None)
        exchange.collect(None)  # rank 0 may serve the store, so it leaves last
        return int(code)

    def _torch(self) -> Any:
        self._watch.prepare("import torch")
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

    def _settle(self, exchange: Exchange, torch: Any) -> Terms:
        """Agree on what is measured with. Raises UsageError on all ranks where they cannot."""
        cards = [Card(**card) for card in exchange.collect(asdict(self._card(torch))) or ()]
        terms = Terms(**exchange.share(asdict(agree(cards, self._seat.nnodes)) if cards else None))
        if cards and not terms.error:
            self._ledger.met = True
            hosts = tuple(card.host for card in cards)
            seat, versions = self._seat, cards[0].versions
            self._ledger.party = Party(seat.kind, seat.ranks, hosts, terms.backend, versions, terms.nodes)
            if terms.remark:
                self._ledger.doubt(terms.remark)
        exchange.collect(None)
        if terms.error:
            raise UsageError(terms.error)
        return terms

    def _card(self, torch: Any) -> Card:
        """What this rank tells the others of itself before anything is measured."""
        usable = torch.cuda.device_count()
        self._device = device_index(self._seat, usable)
        seen = Devices(devices(self._host).nodes, usable, torch.__version__)
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
        versions = {"torch": torch.__version__, "nccl": ".".join(map(str, nccl)) if nccl else None}
        try:
            backend, remark = choose_backend(self._options.backend, self._seat.kind, self._seat.local_ranks, seen)
        except UsageError as error:
            return Card(self._hostname, self._plan_digest(), versions, error=str(error))
        if backend == "gloo" and self._options.mode == "graph":
            why = "--graph captures calls of NCCL in a CUDA graph, and this would measure gloo; leave it out"
            return Card(self._hostname, self._plan_digest(), versions, error=why)
        gpu = None
        if backend == "nccl":
            gpu = str(getattr(torch.cuda.get_device_properties(self._device), "uuid", self._device))
        return Card(self._hostname, self._plan_digest(), versions, backend, gpu, remark)

    def _plan_digest(self) -> int:
        """Ranks started with different options would wait for each other for ever."""
        o = self._options
        calls = (o.iters, o.warmup, o.batches, o.precision, o.budget_s)
        plan = (o.ops, o.sizes, calls, o.dtype, o.redop, o.mode, o.pairs)
        return zlib.crc32(repr(plan).encode())

    def _open_group(self, backend: Backend) -> float:
        """Make the group that is measured; returns the seconds that torch took."""
        import torch

        self._watch.beat("init_process_group")
        if backend == "nccl":
            torch.cuda.set_device(self._device)
        self._backend = backend
        phase_s = self._options.phase_timeout_s
        took_s = group.open_group(self._seat, backend, phase_s + _SLACK_S)
        self._watch.beat("meet in the process group")
        group.meet(backend, phase_s / 2)
        return took_s

    def _conclude(self, ending: Ending) -> int:
        """Close the book; if somebody is lost, with what torch's flight recorder has of the call we are in."""
        record = group.in_flight() if ending.attendance and self._backend else ""
        if record:
            self._ledger.remark(f"the flight recorder of rank {self._seat.rank}: {record}")
        return self._ledger.close(ending)

    def _abort(self) -> None:
        if self._backend:
            group.abort(self._backend)

    def _first_calls(self, group_s: float, exchange: Exchange, device: str) -> None:
        """Open the communicator and the first pairs, in phases of their own, and note what that costs."""
        import torch

        from ncclprobe.probes.clock import clock_of
        from ncclprobe.probes.first import first_calls

        place = torch.device(device)
        self._ledger.first_call = first_calls(group_s, place, clock_of(place), exchange, self._watch.beat)

    def _pairs(self, exchange: Exchange, terms: Terms, device: str) -> None:
        """The tournament of pairs: rank 0 leads it, the others follow."""
        import torch

        from ncclprobe.probes import tournament
        from ncclprobe.probes.pairs import Wire

        asked = self._options.sizes
        sizes = (asked[0], asked[1] if len(asked) > 1 else tournament.DEFAULT_NBYTES[terms.backend])
        self._watch.beat("pairs, buffers")
        wire = Wire(self._seat.rank, torch.device(device), sizes)
        limit_s = self._options.phase_timeout_s / 2
        table = tournament.Table(self._seat.rank, wire, exchange, self._watch.beat, sizes, limit_s)
        if self._seat.rank:
            tournament.follow(table)
        else:
            book, rounds = self._ledger, self._options.pairs or None
            expected = book.expected_GBps(sizes[1])
            book.localise(tournament.lead(table, book.party.hosts, book.add_pair, rounds, expected))
        self._broken = wire.lost

    def _sweep(self, exchange: Exchange, terms: Terms, device: str) -> None:
        from ncclprobe.probes import sweep
        from ncclprobe.probes.plan import Plan

        options = self._options
        plan = Plan(
            ops=options.ops,
            sizes=options.sizes,
            rank=self._seat.rank,
            ranks=self._seat.ranks,
            nodes=terms.nodes,
            backend=terms.backend,
            device=device,
            dtype=options.dtype,
            redop=options.redop,
            iters=options.iters,
            warmup=options.warmup,
            batches=options.batches,
            precision=options.precision,
            budget_s=options.budget_s,
            mode=options.mode or "queued",
        )
        for row in sweep.run(plan, exchange, self._watch.beat, host=self._host):
            if self._seat.rank:
                continue
            if isinstance(row, Unmeasured):
                self._ledger.leave_out(row)
            else:
                self._ledger.add(row)
