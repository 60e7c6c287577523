"""One rank's part in a run, from meeting the others to the verdict."""

import json
import os
import re
import signal
import socket
import tempfile
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from ncclprobe.engine.diagnose import Question
from ncclprobe.errors import HostError, ProbeError, UsageError
from ncclprobe.facts.run.asked import What
from ncclprobe.facts.run.ranks import Participants
from ncclprobe.host import Host
from ncclprobe.model.hostlist import fold
from ncclprobe.model.measurement import Band, SkippedRow
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.session.measure import interference, intra_node, ladder, training
from ncclprobe.session.measure.baseline import know
from ncclprobe.session.measure.expectations import expecting, judgeable
from ncclprobe.session.measure.intra_node import Aside
from ncclprobe.session.measure.look import Look, node_captures, pack, rank_capture, replayed_nodes, write_captures
from ncclprobe.session.measure.nic_traffic import TransportDetection
from ncclprobe.session.measure.numa import gpu_index
from ncclprobe.session.measure.progress import Progress
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.measure.survivor import Survivor
from ncclprobe.session.measure.training import Training
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import group, rank_files
from ncclprobe.session.ranks.agreement import Card, Terms, agree
from ncclprobe.session.ranks.identity import Backend, Devices, Seat, choose_backend, device_index
from ncclprobe.session.ranks.rank_files import Trail
from ncclprobe.session.ranks.store import Exchange, connect, resolve
from ncclprobe.session.ranks.torchrun import explain_exit
from ncclprobe.session.watchdog.watchdog import Ending, Limits, Voices, Watch, leave

_LEAST_SHARE = 0.2
"""Of --timeout, which one of several parts must have before it, or it is not begun."""
_LONGEST_BUDGETS = 4.0
"""A row of a size that nobody asked for takes no longer than so many budgets."""
_SLACK_S = 30.0  # torch's own deadlines come this much after ours, so that ours names the rank


def devices(host: Host) -> Devices:
    """The NVIDIA devices of this node as /dev shows them, without asking the driver."""
    try:
        names = json.loads(host.ask("list", "/dev"))
    except HostError:
        return Devices(0)
    return Devices(sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names))


def _survivor(options: Options, recorder: Recorder) -> Survivor | None:
    """A process that makes the report if this one is killed: where a file is to hold it, and no other process could."""
    if rank_files.FOLDER in os.environ or not options.writes_files:
        return None
    folder = ""
    if recorder.path is None:
        try:
            folder = tempfile.mkdtemp(prefix="ncclprobe-")
            recorder.write_to(Path(folder))
        except (OSError, UsageError):
            return None
    assert recorder.path
    return Survivor(recorder.path, (options.command, *options.argv), folder=folder)


def _trail(rank: int, host: str) -> Trail | None:
    """Where this rank leaves its trace, if ``--nproc`` started it: it then ends with who started it."""
    folder = os.environ.get(rank_files.FOLDER)
    if folder is None:
        return None
    rank_files.end_with_parent(signal.SIGTERM)
    return Trail(folder, rank, host)


def _kind(seat: Seat) -> str:
    """How the ranks were started, as the report says it: torch's agent is ours under ``--nproc``."""
    return "self" if rank_files.FOLDER in os.environ else seat.kind


def too_late(part: What, left_s: float, whole_s: float) -> SkippedRow | None:
    """What is to be said of a part for which so much of the `whole_s` seconds is left; null: it may begin."""
    least_s = _LEAST_SHARE * whole_s
    if left_s >= least_s:
        return None
    why = f"{max(0.0, left_s):.0f} s were left of {whole_s:g}, and it is given {least_s:.0f} or more"
    return SkippedRow(part, None, "time", why)


class Rank:
    """This process in a run: `run` is all of it."""

    def __init__(
        self, options: Options, question: Question, seat: Seat, host: Host, expected: Sequence[Band], backend: Backend
    ) -> None:
        self._options, self._seat, self._host = options, seat, host
        self._hostname = socket.gethostname()
        self._backend: Backend | None = None  # once its group is made
        self._gpu: str | None = None  # the identity of the GPU that it measures with
        self._sizes: tuple[int, ...] = ()  # of collectives, where it is chosen by what can be judged
        self._broken = False  # whether this rank's part of the group hangs on a lost pair
        self._progress = Progress(wanted=seat.rank == 0 and not options.quiet)
        self._trail = _trail(seat.rank, self._hostname)
        self._look = Look(self._hostname) if seat.local_rank == 0 else None
        self._nodes: list[Snapshot] = []
        self._recorder: Recorder | None = None
        self._survivor: Survivor | None = None
        if seat.rank == 0:
            party = Participants(_kind(seat), seat.ranks, (self._hostname,), backend, nnodes=seat.nnodes)
            self._recorder = Recorder(options, question, party, expected, self._progress)
            self._recorder.snapshots = self._snapshots
        spent = time.time() - float(os.environ.get(rank_files.STARTED, time.time()))
        self._deadline = time.monotonic() + options.timeout_s - spent
        limits = Limits(self._deadline, options.phase_timeout_s)
        words = self._trail.words if self._trail else None
        save = self._recorder.keep if self._recorder else lambda ending: None
        voices = Voices(self._conclude, save, self._show_phase, words, self._abort)
        self._watch = Watch(seat, self._hostname, limits, voices)

    def run(self) -> NoReturn:
        """Measure with the others and leave with rank 0's exit code. Raises UsageError, then on every rank."""
        if self._recorder:
            self._recorder.open()  # a path that cannot be written is found out now
            self._survivor = _survivor(self._options, self._recorder)
        self._watch.start()
        if self._look:
            self._look.start()
        try:
            code = self._measure()
        except UsageError as error:
            if self._recorder:
                self._recorder.keep(Ending(why=str(error)))
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
        for part in self._options.what:
            if self._in_time(part, exchange):
                self._part(part, exchange, terms, device)
        self._watch.beat("close the process group")
        if self._broken:
            self._abort()  # to close it in good order would wait for the pair that is lost
        else:
            torch.distributed.destroy_process_group()
        self._watch.beat("hand over what each node saw of itself")
        self._gather_captures(exchange)
        self._watch.beat("verdict")
        exchange.collect(None)  # a rank that is lost on its way here is still a lost rank
        code = exchange.share(self._close(Ending()) if self._recorder else None)
        if not self._recorder:
            explain_exit(int(code), fail_on=self._options.fail_on)
        exchange.collect(None)  # rank 0 may serve the store, so it leaves last
        self._watch.dismiss(code)
        return int(code)

    def _in_time(self, part: What, exchange: Exchange) -> bool:
        """Whether `part` is to be measured, by rank 0's clock: of several, one that comes too late is left out."""
        if len(self._options.what) < 2:
            return True
        late = too_late(part, self._deadline - time.monotonic(), self._options.timeout_s)
        begins = bool(exchange.share(late is None))
        if late and self._recorder:
            self._recorder.skip(late)
        return begins

    def _part(self, part: What, exchange: Exchange, terms: Terms, device: str) -> None:
        """One of the things that were asked for. Every rank must call this."""
        if part == "training":
            assert self._options.training
            self._train(self._options.training, exchange, terms, device)
        elif part == "pairs":
            self._pairs(exchange, terms, device)
        elif part == "collectives":
            self._sweep(exchange, terms, device)
        elif part == "ladder":
            self._ladder(exchange, terms, device)
        else:
            self._inside(part, exchange, terms, device)

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
            self._record_participants(cards, terms)
        exchange.collect(None)
        if terms.error:
            raise UsageError(terms.error)
        return terms

    def _record_participants(self, cards: Sequence[Card], terms: Terms) -> None:
        hosts, gpus = tuple(card.host for card in cards), tuple(card.gpu_index for card in cards)
        assert self._recorder
        self._recorder.take_part(
            Participants(
                kind=_kind(self._seat),
                ranks=self._seat.ranks,
                hosts=hosts,
                backend=terms.backend,
                versions=cards[0].versions,
                nnodes=terms.nodes,
                fallback=terms.remark,
                gpus=tuple(gpu for gpu in gpus if gpu is not None) if None not in gpus else (),
            )
        )
        self._recorder.meet()
        self._recorder.disturbed(interference.of_settings([card.falsifying for card in cards]))

    def _expect(self, exchange: Exchange, terms: Terms) -> None:
        """Learn what to judge the rows by, where no file says it."""
        self._watch.beat("learn what to expect")
        if self._recorder and self._look:
            know(self._recorder, self._options.baseline, self._look.snapshot())
        found = expecting(self._options, terms, exchange, self._seat, self._host, self._look, self._hosts())
        if self._recorder:
            self._recorder.expect((*found.bands, *(found.node_bands if "ladder" in self._options.what else ())))
            if found.note:
                self._recorder.note(found.note)
        if self._options.only_judged:
            chosen = judgeable(self._options.sizes_for(terms.backend), found.bands, terms.backend)
            self._sizes = tuple(exchange.share(chosen))
            if self._recorder:
                self._recorder.ask_for(self._sizes)

    def _hosts(self) -> tuple[str, ...]:
        """The host of each rank on rank 0; elsewhere this one's."""
        return self._recorder.participants.hosts if self._recorder else (self._hostname,)

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
        index = gpu_index(self._device) if backend == "nccl" else None
        false = interference.falsifying(backend, os.environ)
        return Card(self._hostname, self._plan_digest(), versions, backend, self._gpu, remark, "", index, false)

    def _plan_digest(self) -> int:
        """Ranks started with different options would wait for each other for ever."""
        o = self._options
        calls = (o.iters, o.warmup, o.batches, o.precision, o.budget_s)
        plan = (
            o.ops,
            o.sizes,
            o.open_end,
            calls,
            o.dtype,
            o.redop,
            o.mode,
            o.what,
            o.training,
            o.pair_sizes,
            o.rounds,
            o.transport,
        )
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
        """End the record; if a rank is lost, with what torch's flight recorder has of the call we are in."""
        record = group.in_flight() if ending.attendance and self._backend else ""
        if record and self._recorder:
            self._recorder.note(f"the flight recorder of rank {self._seat.rank}: {record}")
        return self._close(ending)

    def _close(self, ending: Ending) -> int:
        code = self._recorder.close(ending) if self._recorder else int(ending.code)
        if self._survivor:
            self._survivor.dismiss()
        explain_exit(code, fail_on=self._options.fail_on)
        return code

    def _snapshots(self) -> list[Snapshot]:
        """The nodes whose captures have come; before that this node, if it has been looked at by now."""
        own = self._look.snapshot(0.0) if self._look and not self._nodes else None
        return [*([own] if own and own.facts else []), *self._nodes]

    def _gather_captures(self, exchange: Exchange) -> None:
        """Hand what each rank saw of its node, or of itself, to rank 0, once there is nothing more to measure."""
        text = self._look.capture() if self._look else rank_capture(self._hostname)
        received = exchange.collect([self._look is not None, pack(text)])
        if received is None or self._recorder is None:
            return
        hosts = self._recorder.participants.hosts
        captures = node_captures(hosts, received)
        self._nodes = replayed_nodes(captures)
        if missing := sorted(set(hosts) - {host for host, _ in captures}):
            self._recorder.note(f"not looked at: {fold(missing)}: no capture came from there")
        folder = os.environ.get(rank_files.FOLDER) or self._options.keep
        if folder:
            write_captures(Path(folder), captures)

    def _abort(self) -> None:
        if self._backend:
            group.abort(self._backend)

    def _first_calls(self, group_s: float, exchange: Exchange, device: str) -> None:
        """Open the communicator and the first pairs, in phases of their own, and note what that costs."""
        import torch

        from ncclprobe.probes.clock import clock_of
        from ncclprobe.probes.first_call import first_calls

        place = torch.device(device)
        cost = first_calls(group_s, place, clock_of(place), exchange, self._watch.beat)
        if self._recorder:
            self._recorder.first_calls(cost)

    def _pairs(self, exchange: Exchange, terms: Terms, device: str) -> None:
        from ncclprobe.session.measure import pairs

        party = pairs.Party(self._options, self._seat, self._host, self._gpu, terms.backend, device, self._look)
        self._broken = not pairs.play(party, exchange, self._recorder, self._watch)

    def _train(self, asked: Training, exchange: Exchange, terms: Terms, device: str) -> None:
        """Groups and steps of training, instead of single collectives."""
        plan = self._plan(terms, device)
        for row in training.play(asked, plan, self._hosts(), self._host, exchange, self._watch.beat):
            if self._recorder:
                self._recorder.add_trained(row)

    def _ladder(self, exchange: Exchange, terms: Terms, device: str) -> None:
        """One rank, its node, all nodes."""
        options, group_s = self._options, self._options.phase_timeout_s + _SLACK_S
        plan, hosts, beat = self._plan(terms, device), self._hosts(), self._watch.beat
        rows = ladder.play(plan, hosts, self._host, options.timeout_s, group_s, exchange, beat)
        if self._recorder:
            self._recorder.add_ladder(rows)

    def _inside(self, asked: Aside, exchange: Exchange, terms: Terms, device: str) -> None:
        """What is measured within nodes, instead of collectives."""
        plan, look = self._plan(terms, device), self._look or Look(self._hostname)
        intra_node.play(asked, plan, self._seat, look, self._host, exchange, self._watch.beat, self._recorder)

    def _plan(self, terms: Terms, device: str) -> Any:
        from ncclprobe.probes.plan import Plan

        options = self._options
        return Plan(
            ops=options.ops,
            sizes=self._sizes or options.sizes_for(terms.backend),
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
            longest_s=_LONGEST_BUDGETS * options.budget_s if options.open_end else options.phase_timeout_s / 2,
            mode=options.mode or "queued",
        )

    def _sweep(self, exchange: Exchange, terms: Terms, device: str) -> None:
        from ncclprobe.session.measure import retest

        plan, options, beat = self._plan(terms, device), self._options, self._watch.beat
        look = self._look or Look(self._hostname)
        detection = TransportDetection(self._seat, self._host, exchange, beat, terms.backend, look, self._hosts())
        if options.transport:
            detection.ahead(plan, options.phase_timeout_s / 2)
            if self._recorder:
                self._recorder.with_transport = detection.told
        retest.sweep(plan, exchange, beat, self._host, self._recorder, options.repeat)
        if options.transport:
            counted = detection.count(plan)
            if self._recorder and len(set(self._hosts())) > 1:
                self._recorder.add_traffic(counted)
        if detection.remark and self._recorder:
            self._recorder.note(detection.remark)
