"""One rank in a run, from meeting the others to the verdict."""

import json
import os
import re
import signal
import socket
import time
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ncclprobe.engine.diagnose import Question
from ncclprobe.errors import HostError, ProbeError, UsageError
from ncclprobe.facts.run.asked import What
from ncclprobe.facts.run.ranks import Participants
from ncclprobe.host import Host, scratch
from ncclprobe.interrupt import leave
from ncclprobe.model.hostlist import fold
from ncclprobe.model.measurement import Band
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import asdict
from ncclprobe.report.progress import Progress
from ncclprobe.session.measure import interference, parts
from ncclprobe.session.measure.baseline import record_fingerprint
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.measure.expectations import expecting, judgeable
from ncclprobe.session.measure.look import Look, node_captures, pack, rank_capture, replayed_nodes, write_captures
from ncclprobe.session.measure.numa import gpu_index
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.measure.survivor import Survivor
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import group, rank_files
from ncclprobe.session.ranks.agreement import RankInfo, RunConfig, agree_on
from ncclprobe.session.ranks.identity import Backend, Devices, RankIdentity, choose_backend, device_index
from ncclprobe.session.ranks.rank_files import RankFile
from ncclprobe.session.ranks.store import Exchange, connect, resolve
from ncclprobe.session.ranks.torchrun import explain_exit
from ncclprobe.session.watchdog.ending import Ending, reserve_s
from ncclprobe.session.watchdog.watchdog import Callbacks, Limits, Watchdog

_SLACK_S = 30.0  # torch's own deadlines come this much after ours, so that ours names the rank


def devices(host: Host) -> Devices:
    """Count the NVIDIA devices of this node in /dev, without asking the driver."""
    try:
        names = json.loads(host.ask("list", "/dev"))
    except HostError:
        return Devices(0)
    return Devices(sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names))


def _survivor(options: Options, recorder: Recorder) -> Survivor | None:
    """Start a process that makes the report if this one is killed, where a file is to hold it and no other could."""
    if rank_files.FOLDER in os.environ or not options.writes_files:
        return None
    folder = None
    if recorder.path is None:
        try:
            folder = scratch.make()
            recorder.write_to(folder.path)
        except (OSError, UsageError):
            return None
    assert recorder.path
    return Survivor(recorder.path, (options.command, *options.argv), options.timeout_s, folder)


def _rank_file(rank: int, host: str) -> RankFile | None:
    """Open the file for this rank's state, if ``--nproc`` started it; it then ends with its parent."""
    folder = os.environ.get(rank_files.FOLDER)
    if folder is None:
        return None
    rank_files.end_with_parent(signal.SIGTERM)
    return RankFile(folder, rank, host)


def _began(question: Question) -> float:
    """Return the time.monotonic() at which the run began: with --nproc, when its parent did."""
    parent = os.environ.get(rank_files.STARTED)
    return question.clock if parent is None else time.monotonic() - time.time() + float(parent)


def _kind(identity: RankIdentity) -> str:
    """Return how the ranks were started, as the report says it: ``self`` under ``--nproc``."""
    return "self" if rank_files.FOLDER in os.environ else identity.kind


class Rank:
    """This process in a run, which :meth:`run` makes."""

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
        self._gpu: str | None = None  # the identity of the GPU that it measures with
        self._sizes: tuple[int, ...] = ()  # of collectives, where it is chosen by what can be judged
        self._progress = Progress(wanted=identity.rank == 0 and not options.quiet)
        self._rank_file = _rank_file(identity.rank, self._hostname)
        self._look = Look(self._hostname) if identity.local_rank == 0 else None
        self._nodes: list[Snapshot] = []
        self._recorder: Recorder | None = None
        self._survivor: Survivor | None = None
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
        """Measure with the others and leave with rank 0's exit code. Raises UsageError, then on every rank."""
        if self._recorder:
            self._recorder.open()  # raises now where a path cannot be written
            self._survivor = _survivor(self._options, self._recorder)
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
            self._watchdog.failed(str(error).strip().partition("\n")[0])
        finally:
            self._watchdog.stop()
        leave(code)

    def _show_phase(self, phase: str) -> None:
        if not (self._rank_file and phase == rank_files.IMPORTING):
            self._progress.show(phase)
        if self._rank_file:
            self._rank_file.set_phase(phase)

    def _measure(self) -> int:
        torch = self._torch()
        self._watchdog.set_phase(f"resolve the name of rank 0's host, {self._identity.address}")
        resolve(self._identity)
        self._watchdog.set_phase(f"reach the store at {self._identity.address}:{self._identity.port}")
        slack_s = self._options.phase_timeout_s + self._watchdog.late_s + _SLACK_S
        store = connect(self._identity, serve=self._identity.serves, timeout_s=slack_s)
        self._watchdog.attach(connect(self._identity, serve=False, timeout_s=slack_s), store)
        self._watchdog.set_phase("wait for the other ranks")
        exchange = Exchange(store, self._identity, slack_s)
        config = self._agree(exchange, torch)
        self._expect(exchange, config)
        group_s = self._open_group(config.backend)
        intact = self._measure_parts(self._context(exchange, config), group_s)
        self._watchdog.set_phase("close the process group")
        if intact:
            torch.distributed.destroy_process_group()
        else:
            self._abort()  # an orderly close would wait for the pair that is lost
        self._watchdog.set_phase("collect the captures of all nodes")
        self._gather_captures(exchange)
        self._watchdog.set_phase("verdict")
        exchange.collect(None)  # a rank that is lost on its way here is still a lost rank
        code = exchange.share(self._close(Ending()) if self._recorder else None)
        if not self._recorder:
            explain_exit(int(code), fail_on=self._options.fail_on)
        exchange.collect(None)  # rank 0 may serve the store, so it leaves last
        self._watchdog.dismiss(code)
        return int(code)

    def _context(self, exchange: Exchange, config: RunConfig) -> RankContext:
        return RankContext(
            options=self._options,
            identity=self._identity,
            host=self._host,
            config=config,
            device=f"cuda:{self._device}" if config.backend == "nccl" else "cpu",
            gpu=self._gpu,
            sizes=self._sizes,
            hosts=self._hosts(),
            look=self._look,
            exchange=exchange,
            watchdog=self._watchdog,
            recorder=self._recorder,
        )

    def _measure_parts(self, context: RankContext, group_s: float) -> bool:
        """Measure all that was asked for; return whether the group can still be closed in good order."""
        parts.first_calls(context, group_s)
        self._progress.finish("torch, process group and first calls")
        intact = True
        for part in self._options.what:
            if self._begins(part, intact, context.exchange):
                intact = parts.measure(part, context, self._hostname) and intact
                self._progress.finish(part)
        return intact

    def _begins(self, part: What, intact: bool, exchange: Exchange) -> bool:
        """Return whether `part` is measured, by rank 0's clock: of several parts, one that cannot end is skipped."""
        if len(self._options.what) < 2:
            return True
        skipped = parts.too_late(part, self._deadline - time.monotonic(), self._options.timeout_s)
        skipped = skipped if intact else parts.without_all(part)
        begins = bool(exchange.share(skipped is None))
        if skipped and self._recorder:
            self._recorder.skip(skipped)
        return begins

    def _torch(self) -> Any:
        self._watchdog.prepare(rank_files.IMPORTING)
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

    def _agree(self, exchange: Exchange, torch: Any) -> RunConfig:
        """Agree on the backend. Raises UsageError on all ranks where they differ."""
        infos = [RankInfo(**info) for info in exchange.collect(asdict(self._rank_info(torch))) or ()]
        config = RunConfig(**exchange.share(asdict(agree_on(infos, self._identity.nnodes)) if infos else None))
        if infos and not config.error:
            self._record_participants(infos, config)
        exchange.collect(None)
        if config.error:
            raise UsageError(config.error)
        return config

    def _record_participants(self, infos: Sequence[RankInfo], config: RunConfig) -> None:
        hosts, gpus = tuple(info.host for info in infos), tuple(info.gpu_index for info in infos)
        assert self._recorder
        self._recorder.take_part(
            Participants(
                kind=_kind(self._identity),
                ranks=self._identity.ranks,
                hosts=hosts,
                backend=config.backend,
                versions=infos[0].versions,
                nnodes=config.nodes,
                fallback=config.note,
                gpus=tuple(gpu for gpu in gpus if gpu is not None) if None not in gpus else (),
            )
        )
        self._recorder.meet()
        self._recorder.disturbed(interference.of_settings([info.falsifying for info in infos]))

    def _expect(self, exchange: Exchange, config: RunConfig) -> None:
        """Find what to judge the rows by, where no file says it."""
        self._watchdog.set_phase("learn what to expect")
        if self._recorder and self._look:
            record_fingerprint(self._recorder, self._options.baseline, self._look.snapshot())
        found = expecting(self._options, config, exchange, self._identity, self._host, self._look, self._hosts())
        if self._recorder:
            self._recorder.expect((*found.bands, *(found.node_bands if "ladder" in self._options.what else ())))
            if found.note:
                self._recorder.note(found.note)
        if self._options.only_judged:
            chosen = judgeable(self._options.sizes_for(config.backend), found.bands, config.backend)
            self._sizes = tuple(exchange.share(chosen))
            if self._recorder:
                self._recorder.ask_for(self._sizes)

    def _hosts(self) -> tuple[str, ...]:
        """Return the host of each rank on rank 0, elsewhere this one's."""
        return self._recorder.participants.hosts if self._recorder else (self._hostname,)

    def _rank_info(self, torch: Any) -> RankInfo:
        """Make what this rank sends to rank 0 before anything is measured."""
        usable = torch.cuda.device_count()
        self._device = device_index(self._identity, usable)
        seen = Devices(devices(self._host).nodes, usable, torch.__version__)
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
        versions = {"torch": str(torch.__version__), "nccl": ".".join(map(str, nccl)) if nccl else None}
        try:
            backend, note = choose_backend(self._options.backend, self._identity.kind, self._identity.local_ranks, seen)
        except UsageError as error:
            return RankInfo(self._hostname, self._plan_digest(), versions, error=str(error))
        if backend == "gloo" and self._options.mode == "graph":
            why = "--graph captures calls of NCCL in a CUDA graph, and this would measure gloo; leave it out"
            return RankInfo(self._hostname, self._plan_digest(), versions, error=why)
        if backend == "nccl":
            self._gpu = str(getattr(torch.cuda.get_device_properties(self._device), "uuid", self._device))
        index = gpu_index(self._device) if backend == "nccl" else None
        falsifying = interference.falsifying(backend, os.environ, self._host, nccl)
        host_id = os.environ.get("NCCL_HOSTID", "")
        own = (self._hostname, self._plan_digest(), versions, backend, self._gpu, note, "", index, falsifying, host_id)
        return RankInfo(*own)

    def _plan_digest(self) -> int:
        """Digest the options that all ranks must share: with different ones they would wait for each other for ever."""
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
        """Make the group that is measured; return the seconds that torch took."""
        import torch

        self._watchdog.set_phase("init_process_group")
        if backend == "nccl":
            torch.cuda.set_device(self._device)
        self._backend = backend
        phase_s = self._options.phase_timeout_s
        took_s = group.open_group(self._identity, backend, phase_s + _SLACK_S)
        self._watchdog.set_phase("meet in the process group")
        group.barrier(backend, phase_s / 2)
        return took_s

    def _conclude(self, ending: Ending) -> int:
        """End the record; if a rank is lost, with what torch's flight recorder has of the call in flight."""
        record = group.in_flight() if ending.attendance and self._backend else ""
        if record and self._recorder:
            self._recorder.note(f"the flight recorder of rank {self._identity.rank}: {record}")
        return self._close(ending)

    def _close(self, ending: Ending) -> int:
        code = self._recorder.close(ending) if self._recorder else int(ending.code)
        if self._survivor:
            self._survivor.dismiss()
        explain_exit(code, fail_on=self._options.fail_on)
        return code

    def _snapshots(self) -> list[Snapshot]:
        """Return the nodes whose captures have come; before that this node, if its snapshot is complete."""
        own = self._look.snapshot(0.0) if self._look and not self._nodes else None
        return [*([own] if own and own.facts else []), *self._nodes]

    def _gather_captures(self, exchange: Exchange) -> None:
        """Send the capture of each node, and of each other rank, to rank 0, after the last row."""
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
