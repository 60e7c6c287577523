"""One rank in a run, from joining the others to the verdict."""

import os
import socket
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from ncclprobe.engine.diagnose import Question
from ncclprobe.facts import nvml
from ncclprobe.facts.environment import measuring_environment, release_settings
from ncclprobe.facts.run.samples import Participants, What
from ncclprobe.host import Host, settings
from ncclprobe.model.errors import ProbeError, UsageError, without_torch
from ncclprobe.model.measurement import Band, SkippedRow
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import asdict, replace
from ncclprobe.report.progress import Progress
from ncclprobe.session.measure import interference
from ncclprobe.session.measure.context import TORCH_SLACK_S, RankContext
from ncclprobe.session.measure.expectations import judgeable, learn
from ncclprobe.session.measure.node_snapshot import NodeSnapshot, gather_captures, share_gpus, write_captures
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import group, rank_files
from ncclprobe.session.ranks.identity import (
    Backend,
    RankIdentity,
    RankInfo,
    RunConfig,
    agree_on,
    choose_backend,
    device_index,
    devices,
)
from ncclprobe.session.ranks.rank_files import RankFile, explain_exit
from ncclprobe.session.ranks.store import Exchange, connect, resolve
from ncclprobe.session.watchdog.ending import Ending, reserve_s
from ncclprobe.session.watchdog.watchdog import Callbacks, Limits, Watchdog
from ncclprobe.signals import leave


def _rank_file(rank: int, host: str) -> RankFile | None:
    """Open the file for this rank's state, if ``--nproc`` started it."""
    folder = os.environ.get(rank_files.FOLDER)
    return None if folder is None else RankFile(folder, rank, host)


def _began(question: Question) -> float:
    """Return the time.monotonic() of the run's start; with --nproc, its parent's."""
    parent = os.environ.get(rank_files.STARTED)
    return question.clock if parent is None else float(parent)


def _kind(identity: RankIdentity) -> str:
    """Return how the ranks were started, in the report's words: ``self`` under ``--nproc``."""
    return "self" if rank_files.FOLDER in os.environ else identity.kind


_LEAST_SHARE = 0.2
"""One of several parts is skipped if less than this share of --timeout is left."""


def too_late(part: What, left_s: float, whole_s: float) -> SkippedRow | None:
    """Return why `part` is skipped with `left_s` of `whole_s` seconds left; None: it may begin."""
    least_s = _LEAST_SHARE * whole_s
    if left_s >= least_s:
        return None
    why = f"{max(0.0, left_s):.0f} s were left of {whole_s:g}, and it is given {least_s:.0f} or more"
    return SkippedRow(part, None, "time", why)


def skipped_for_lost_ranks(part: What) -> SkippedRow:
    """Return why `part` is skipped after pairs whose ranks did not all take part to the end."""
    return SkippedRow(part, None, "lost", "it needs all ranks, and an earlier pair gave no result")


class Rank:
    """This process in a run, which :meth:`run` performs."""

    def __init__(
        self,
        options: Options,
        question: Question,
        identity: RankIdentity,
        host: Host,
        expected: Sequence[Band],
        backend: Backend,
    ) -> None:
        self._options, self._identity, self._host = options, identity, host
        self._hostname = socket.gethostname()
        self._backend: Backend | None = None  # once its group is made
        self._device = 0  # until this rank has chosen its own
        self._gpu: str | None = None  # the identity of the GPU that it measures with
        self._progress = Progress(wanted=identity.rank == 0 and not options.output.quiet)
        self._rank_file = _rank_file(identity.rank, self._hostname)
        folder = os.environ.get(rank_files.FOLDER)
        self._look = NodeSnapshot(self._hostname, folder=folder) if identity.local_rank == 0 else None
        self._nodes: list[Snapshot] = []
        self._recorder: Recorder | None = None
        if identity.rank == 0:
            participants = Participants(
                _kind(identity), identity.ranks, (self._hostname,), backend, nnodes=identity.nnodes
            )
            self._recorder = Recorder(options, question, participants, expected, self._progress)
            self._recorder.snapshots = self._snapshots
        self._deadline = _began(question) + options.timeout_s - reserve_s(options.timeout_s)
        limits = Limits(self._deadline, options.phase_timeout_s)
        own = self._rank_file
        save = self._recorder.keep if self._recorder else lambda ending: None
        callbacks = Callbacks(
            self._conclude,
            save,
            self._show_phase,
            own.leave if own else None,
            own.signalled if own else lambda name: None,
            self._abort,
        )
        self._watchdog = Watchdog(identity, self._hostname, limits, callbacks)

    def run(self) -> NoReturn:
        """Measure with the others and exit with rank 0's exit code. Raises UsageError, then on every rank."""
        if self._recorder:
            self._recorder.open()  # raises now where a path cannot be written
        self._watchdog.start()
        if self._look:
            self._look.start()
        try:
            code = self._measure()
        except UsageError as error:
            if self._recorder:
                self._recorder.keep(Ending(why=str(error)))
            raise
        except group.MissedBarrier as error:
            self._watchdog.failed(str(error), error.ranks)
        except (ProbeError, RuntimeError) as error:  # torch raises RuntimeError for a peer that is gone
            self._watchdog.failed(
                group.why(error, self._backend, self._device) + interference.xids_behind(self._host, self._backend)
            )
        finally:
            self._watchdog.stop()
        leave(code)

    @property
    def _only_copies(self) -> bool:
        """Return whether nothing is sent between ranks, whichever the backend."""
        return self._options.what == ("copies",)

    def _show_phase(self, phase: str) -> None:
        if self._rank_file:
            self._rank_file.set_phase(phase)  # first: who started the ranks then leaves the line to this one
            if phase == rank_files.IMPORTING:
                return
        self._progress.show(phase)

    def _measure(self) -> int:
        torch = self._torch()
        self._watchdog.set_phase(f"resolve the name of rank 0's host, {self._identity.address}")
        resolve(self._identity)
        self._watchdog.set_phase(f"reach the store at {self._identity.address}:{self._identity.port}")
        rest_s = self._deadline - time.monotonic()  # which a rank that imports torch slowly may take
        slack_s = max(self._options.phase_timeout_s + self._watchdog.late_s, rest_s) + TORCH_SLACK_S
        store = connect(self._identity, serve=self._identity.serves, timeout_s=slack_s)
        self._watchdog.attach(connect(self._identity, serve=False, timeout_s=slack_s), store)
        self._watchdog.set_phase("wait for the other ranks")
        exchange = Exchange(store, self._identity, slack_s)
        config = self._agree(exchange, torch)
        self._watchdog.met = True
        if config.apart:
            self._watchdog.set_phase("learn which GPUs each rank of a node sees")
            share_gpus(exchange, self._look, self._hostname, self._hosts())
        run = self._expect(self._context(exchange, config))
        if self._options.what:
            self._measure_in_group(run)
        self._watchdog.set_phase("collect the captures of all nodes")
        self._gather_captures(exchange)
        self._watchdog.set_phase("verdict")
        if self._recorder:
            for rank, late_s in self._watchdog.late():
                self._recorder.note(
                    f"rank {rank} came {late_s:.0f} s after half of the ranks; the others waited for it"
                )
        exchange.collect(None)  # a rank that is lost on its way here is still a lost rank
        code = exchange.share(self._close(Ending()) if self._recorder else None)
        if not self._recorder:
            explain_exit(int(code), fail_on=self._options.judging.fail_on)
        exchange.collect(None)  # rank 0 may serve the store, so it leaves last
        self._watchdog.dismiss(code)
        return int(code)

    def _measure_in_group(self, run: RankContext) -> None:
        """Open the group, measure all parts in it, and close it."""
        listens = run.config.backend == "nccl" and nvml.xids(self._host)  # from now on, or why it does not
        group_s = self._open_group(run.config.backend)
        from ncclprobe.session.measure import collectives  # and torch, as all parts

        if not self._only_copies:
            collectives.first_calls(run, group_s)
        self._progress.finish("torch, process group and first calls")
        intact = True
        for part in self._options.what:
            if self._begins(part, intact, run.exchange):
                intact = import_module(f"ncclprobe.session.measure.{part}").play(run) and intact
                self._progress.finish(part)
        if run.config.backend == "nccl":
            interference.tell_xids(run, heard=not isinstance(listens, Absent))
        self._watchdog.set_phase("close the process group")
        if intact:
            import torch.distributed

            torch.distributed.destroy_process_group()
        else:
            self._abort()  # an orderly close would wait for the pair that is lost

    def _context(self, exchange: Exchange, config: RunConfig) -> RankContext:
        return RankContext(
            options=self._options,
            identity=self._identity,
            host=self._host,
            config=config,
            device=f"cuda:{self._device}" if config.backend == "nccl" else "cpu",
            gpu=self._gpu,
            hosts=self._hosts(),
            look=self._look,
            exchange=exchange,
            set_phase=self._watchdog.set_phase,
            watchdog=self._watchdog,
            recorder=self._recorder,
        )

    def _begins(self, part: What, intact: bool, exchange: Exchange) -> bool:
        """Return whether `part` is measured, by rank 0's clock: of several parts, one that cannot end in time is
        skipped.
        """
        if len(self._options.what) < 2:
            return True
        skipped = too_late(part, self._watchdog.left_s(), self._options.timeout_s)
        skipped = skipped if intact else skipped_for_lost_ranks(part)
        begins = bool(exchange.share(skipped is None))
        if skipped and self._recorder:
            self._recorder.record(skipped)
        return begins

    def _torch(self) -> Any:
        self._watchdog.prepare(rank_files.IMPORTING)
        changed = {
            name: value for name, value in measuring_environment(os.environ).items() if os.environ.get(name) != value
        }
        if not self._options.output.verbose and "TORCH_CPP_LOG_LEVEL" not in os.environ:
            changed["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # its stack traces would bury the report
        settings.set_ours(changed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*NumPy", category=UserWarning)  # torch without numpy
            try:
                import torch.distributed
            except ImportError as error:
                raise without_torch(error) from None
        settings.set_ours(release_settings(torch.__version__))
        return torch

    def _agree(self, exchange: Exchange, torch: Any) -> RunConfig:
        """Agree on the backend. Raises UsageError on all ranks if they differ."""
        infos = [RankInfo(**info) for info in exchange.collect(asdict(self._rank_info(torch))) or ()]
        config = RunConfig(**exchange.share(asdict(agree_on(infos, self._identity.nnodes)) if infos else None))
        if infos and not config.error:
            assert self._recorder
            for line in interference.record_participants(self._recorder, _kind(self._identity), infos, config):
                self._progress.say(f"ranks differ in {line}")
        exchange.collect(None)
        if config.error:
            raise UsageError(config.error)
        return config

    def _expect(self, run: RankContext) -> RankContext:
        """Find expectations for the rows if no file gives them; return `run` with sizes that they can judge."""
        run.set_phase("learn what to expect")
        found, backend = learn(run), run.config.backend
        if not self._options.only_judged:
            return run
        sizes = tuple(run.exchange.share(judgeable(self._options.sizes_for(backend), found.bands, backend)))
        if self._recorder:
            self._recorder.ask_for(sizes)
        return replace(run, sizes=sizes)

    def _hosts(self) -> tuple[str, ...]:
        """Return the host of each rank on rank 0, elsewhere this one's."""
        return self._recorder.participants.hosts if self._recorder else (self._hostname,)

    def _rank_info(self, torch: Any) -> RankInfo:
        """Build this rank's report to rank 0, before anything is measured."""
        usable = interference.usable_gpus()
        self._device = device_index(self._identity, usable)
        seen = replace(devices(self._host), usable=usable, torch=str(torch.__version__))
        o = self._options
        try:
            backend, note = choose_backend(o.backend, self._identity.kind, self._identity.local_ranks, seen)
        except UsageError as error:
            return RankInfo(self._hostname, o.digest, interference.versions(), error=str(error))
        local = self._identity.local_ranks
        note = "" if self._only_copies else note  # of host memory they say what they say of it
        info = interference.rank_info(o, self._hostname, self._host, backend, self._device, local, note)
        self._gpu = info.gpu
        return info

    def _open_group(self, backend: Backend) -> float:
        """Create the measured group; return the seconds that torch took."""
        import torch

        self._watchdog.set_phase("init_process_group")
        if backend == "nccl":
            torch.cuda.set_device(self._device)
        self._backend = backend
        phase_s = self._options.phase_timeout_s
        took_s = group.open_group(self._identity, backend, phase_s + TORCH_SLACK_S)
        self._watchdog.set_phase("meet in the process group")
        group.barrier(backend, phase_s / 2)
        return took_s

    def _conclude(self, ending: Ending) -> int:
        """End the record; if this rank waits for others, add torch's flight record of its current call."""
        waits = ending.attendance and all(each.rank for each in ending.attendance.lost)
        record = group.in_flight(self._backend) if waits and self._backend else ""
        if record and self._recorder:
            self._recorder.note(f"the flight recorder of rank {self._identity.rank}: {record}")
        return self._close(ending)

    def _close(self, ending: Ending) -> int:
        code = self._recorder.close(ending) if self._recorder else int(ending.code)
        explain_exit(code, fail_on=self._options.judging.fail_on)
        return code

    def _snapshots(self) -> list[Snapshot]:
        """Return the nodes whose captures have arrived; before that, this node if its snapshot is complete."""
        own = self._look.snapshot(0.0) if self._look and not self._nodes else None
        return [*([own] if own and own.facts else []), *self._nodes]

    def _gather_captures(self, exchange: Exchange) -> None:
        """Send the capture of each node, and of each other rank, to rank 0, after the last row."""
        captures = gather_captures(exchange, self._look, self._hostname, self._hosts())
        if captures is None or self._recorder is None:
            return
        self._nodes = self._recorder.take_captures(captures)
        folder = os.environ.get(rank_files.FOLDER) or self._options.keep
        if folder:
            self._recorder.lose_files(write_captures(Path(folder), captures))

    def _abort(self) -> None:
        if self._backend:
            group.abort(self._backend)
