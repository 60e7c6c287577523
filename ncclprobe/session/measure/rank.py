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
from ncclprobe.expect.site.bands import Band
from ncclprobe.host import Host
from ncclprobe.session.measure import intra_node, training
from ncclprobe.session.measure.baseline import know
from ncclprobe.session.measure.expectations import expecting
from ncclprobe.session.measure.intra_node import Aside
from ncclprobe.session.measure.nic_traffic import Roads
from ncclprobe.session.measure.progress import Progress
from ncclprobe.session.measure.recorder import Ledger, Party
from ncclprobe.session.measure.training import Training
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import group, rank_files
from ncclprobe.session.ranks.agreement import Card, Terms, agree
from ncclprobe.session.ranks.identity import Backend, Devices, Seat, choose_backend, device_index
from ncclprobe.session.ranks.rank_files import Trail
from ncclprobe.session.ranks.store import Exchange, connect, resolve
from ncclprobe.session.watchdog.watchdog import Ending, Limits, Voices, Watch, leave

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
    folder = os.environ.get(rank_files.FOLDER)
    if folder is None:
        return None
    rank_files.end_with_parent(signal.SIGTERM)
    return Trail(folder, rank, host)


class Rank:
    """This process in a run: `run` is all of it."""

    def __init__(self, options: Options, seat: Seat, host: Host, expected: Sequence[Band], backend: Backend) -> None:
        self._options, self._seat, self._host = options, seat, host
        self._hostname = socket.gethostname()
        self._backend: Backend | None = None  # once its group is made
        self._gpu: str | None = None  # the identity of the GPU that it measures with
        self._broken = False  # whether this rank's part of the group hangs on a lost pair
        self._progress = Progress(wanted=seat.rank == 0 and not options.quiet)
        self._trail = _trail(seat.rank, self._hostname)
        party = Party(seat.kind, seat.ranks, (self._hostname,), backend, nnodes=seat.nnodes)
        self._ledger = Ledger(options, party, expected, self._progress)
        spent = time.time() - float(os.environ.get(rank_files.STARTED, time.time()))
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
        self._expect(exchange, terms)
        group_s = self._open_group(terms.backend)
        device = f"cuda:{self._device}" if terms.backend == "nccl" else "cpu"
        self._first_calls(group_s, exchange, device)
        if self._options.training is not None:
            self._train(self._options.training, exchange, terms, device)
        elif self._options.aside is not None:
            self._aside(self._options.aside, exchange, terms, device)
        elif self._options.pairs is None:
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
        self._watch.dismiss(code)
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

    def _expect(self, exchange: Exchange, terms: Terms) -> None:
        """Learn what to judge the rows by, where no file says it."""
        self._watch.beat("learn what to expect")
        hosts = self._ledger.party.hosts  # of all ranks on rank 0, elsewhere this one's
        if self._seat.rank == 0:
            know(self._ledger, self._options.baseline, self._host)
        found = expecting(self._options, terms, exchange, self._seat, self._host, hosts)
        self._ledger.expect(found.bands)
        if found.remark:
            self._ledger.remark(found.remark)

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
        if backend == "nccl":
            self._gpu = str(getattr(torch.cuda.get_device_properties(self._device), "uuid", self._device))
        return Card(self._hostname, self._plan_digest(), versions, backend, self._gpu, remark)

    def _plan_digest(self) -> int:
        """Ranks started with different options would wait for each other for ever."""
        o = self._options
        calls = (o.iters, o.warmup, o.batches, o.precision, o.budget_s)
        plan = (o.ops, o.sizes, calls, o.dtype, o.redop, o.mode, o.pairs, o.training, o.aside, o.road)
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
        from ncclprobe.probes.first_call import first_calls

        place = torch.device(device)
        self._ledger.first_call = first_calls(group_s, place, clock_of(place), exchange, self._watch.beat)

    def _pairs(self, exchange: Exchange, terms: Terms, device: str) -> None:
        from ncclprobe.session.measure import pairs

        book, watch = self._ledger, self._watch
        party = pairs.Party(self._options, self._seat, self._host, self._gpu, terms.backend, device)
        self._broken = not pairs.play(party, exchange, book, watch)

    def _train(self, asked: Training, exchange: Exchange, terms: Terms, device: str) -> None:
        """Groups and steps of training, instead of single collectives."""
        plan, hosts = self._plan(terms, device), self._ledger.party.hosts
        for row in training.play(asked, plan, hosts, self._host, exchange, self._watch.beat):
            if self._seat.rank == 0:
                self._ledger.add_trained(row)

    def _aside(self, asked: Aside, exchange: Exchange, terms: Terms, device: str) -> None:
        """What is measured within nodes, instead of collectives."""
        plan, beat, book = self._plan(terms, device), self._watch.beat, self._ledger
        if remark := intra_node.play(asked, plan, self._seat, self._hostname, self._host, exchange, beat, book.asides):
            book.remark(remark)

    def _plan(self, terms: Terms, device: str) -> Any:
        from ncclprobe.probes.plan import Plan

        options = self._options
        return Plan(
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

    def _sweep(self, exchange: Exchange, terms: Terms, device: str) -> None:
        from ncclprobe.session.measure import retest

        plan, book, options = self._plan(terms, device), self._ledger, self._options
        roads = Roads(self._seat, self._host, exchange, self._watch.beat, terms.backend, book.party.hosts)
        if options.road:
            roads.ahead(plan, options.phase_timeout_s / 2)
            book.asides.told = roads.told
        retest.sweep(plan, exchange, self._watch.beat, self._host, book, options.repeat)
        if options.road:
            book.asides.roads = roads.count(plan)
        if roads.remark:
            book.remark(roads.remark)
