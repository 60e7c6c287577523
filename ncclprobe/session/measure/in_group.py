"""A run inside a process group that a program has made: each of its ranks calls :func:`measured` and gets the report.

Only the caller's store is used, under a prefix of our own. The measurement uses a group of our own over the same
ranks, with our own deadline, so that a call which fails leaves the caller's group as it was. Nothing is printed and no
signal is taken over; threads that read files stay idle for the next call (:mod:`ncclprobe.host.patience`).
"""

import contextlib
import itertools
import math
import os
import socket
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from ncclprobe.engine.diagnose import Question
from ncclprobe.facts.launcher import detect
from ncclprobe.facts.run.samples import Participants
from ncclprobe.host import Host
from ncclprobe.host.patience import until
from ncclprobe.model.errors import ProbeError, UsageError, reason
from ncclprobe.model.hostlist import fold_ranks
from ncclprobe.model.measurement import Band
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct, asdict, replace
from ncclprobe.report import json as as_json
from ncclprobe.session.measure import joining
from ncclprobe.session.measure.collectives import sweep
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.measure.expectations import learn
from ncclprobe.session.measure.node_snapshot import LOOK_S, NodeSnapshot, gather_captures, share_gpus
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import group as groups
from ncclprobe.session.ranks.identity import Backend, RankIdentity, RankInfo, RunConfig, agree_on
from ncclprobe.session.ranks.store import Exchange, key
from ncclprobe.session.watchdog.ending import reserve_s

Prepare = Callable[[Backend], tuple[Options, Question, Sequence[Band]]]
"""Makes the request for a backend, with the bands of a file. Raises UsageError."""

_TORCHS_OWN_S = 60.0
"""Seconds by which NCCL's deadline follows ours: at its own, torch's watchdog would end the caller's process."""
_WORD_POLL_S = 0.02
_CHUNK = 1 << 20
"""Characters of a report that are shared at once."""
_STUCK: list[Any] = []
"""Groups that could not be aborted: their end would wait for that, in whichever thread forgets them last."""
_RUNS: dict[str, Iterator[int]] = defaultdict(itertools.count)
"""Numbers the runs over the same ranks, so that each has keys of its own in the store."""


class Members(Struct, frozen=True):
    """The caller's group: its ranks in the whole job, in their order; which of them this is, and what they use."""

    ranks: tuple[int, ...]
    own: int
    backend: Backend
    device: int = 0

    @property
    def on(self) -> str:
        """Return torch's name of the device that this rank measures on."""
        return f"cuda:{self.device}" if self.backend == "nccl" else "cpu"


def members(group: Any) -> Members:
    """Return the ranks of the caller's `group`; null: of all. Raises UsageError if it cannot be measured."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("no process group exists; call torch.distributed.init_process_group first")
    own = dist.get_rank(group)
    if own < 0:
        raise UsageError("this rank is not a member of the group; call this only on the ranks of the group")
    ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    if len(ranks) < 2:
        raise UsageError("one rank has nothing to measure; give a group of two ranks or more")
    backends = str(dist.distributed_c10d.get_backend_config(group))
    if "nccl" in backends and torch.cuda.is_available():
        _refuse_split(len(ranks) < dist.get_world_size())
        return Members(ranks, own, "nccl", torch.cuda.current_device())
    if "gloo" not in backends:
        raise UsageError(f"a group of {backends} cannot be measured: only those of nccl and gloo")
    return Members(ranks, own, "gloo")


def _refuse_split(part: bool) -> None:
    """Raise UsageError if NCCL would split the communicator of all ranks, and only a `part` of them is here.

    torch does so for every new group once the default one is bound to a device (distributed_c10d.py,
    _get_split_source), and the ranks outside the group must take part.
    """
    import torch.distributed as dist

    if part and getattr(dist.group.WORLD, "bound_device_id", None) is not None:
        raise UsageError(
            "init_process_group was given a device_id, so that all ranks take part wherever a group is made: measure "
            "all ranks, or leave device_id out"
        )


def _refuse_without_abort(backend: Backend, group: Any) -> None:
    """Raise UsageError if torch could not end a call that hangs, which would stay on the caller's GPU for ever."""
    import torch

    if backend == "nccl" and groups.aborter(group) is None:
        raise UsageError(
            f"torch {torch.__version__} cannot abort a communicator of NCCL, so that a call which hangs would stay on "
            "this job's GPU: measure before the job, with `torchrun -m ncclprobe.bandwidth`"
        )


def measured(group: Any, prepare: Prepare, host: Host, timeout_s: float, began: float) -> Report:
    """Measure on all ranks of `group` at the same time, and return the report, the same on each.

    A wrong request on one rank is an error on all. Raises UsageError, and ProbeError if a rank does not join, leaves,
    or is not ready `timeout_s` seconds after `began`, with the ranks that sent nothing more. A call that hangs in torch
    then stays on a thread.
    """
    who, end, reserved_s = members(group), began + timeout_s, reserve_s(timeout_s)
    run = _Run(who, host, end - reserved_s - time.monotonic())
    try:
        return until(end - reserved_s / 2, partial(run.play, prepare))
    except UsageError:
        run.say_left()
        raise
    except (ProbeError, RuntimeError) as error:  # the latter is torch's, for a peer or a store that is gone
        own = "" if isinstance(error, ProbeError) else f"rank {who.own}: "
        why = f"{own}{groups.why(error, who.backend, who.device)}"
        silent = run.silent(reserved_s / 4)
        seen = f"{fold_ranks(silent)} left no message, so it has ended or is stopped; " if silent else ""
        raise ProbeError(f"{seen}{why}") from error
    except TimeoutError:
        raise ProbeError(f"rank {who.own}: {run.phase} had not ended after {timeout_s:g} s") from None
    finally:
        run.leave(end - time.monotonic())


class _Run:
    """One rank's part."""

    def __init__(self, who: Members, host: Host, timeout_s: float) -> None:
        import torch.distributed as dist

        self.phase, self._watching = "the meeting of the ranks", groups.watching()
        self._who, self._host, self._timeout_s = who, host, timeout_s
        self._end, self._hostname = time.monotonic() + timeout_s, socket.gethostname()
        self._store, self._group = dist.distributed_c10d._get_default_store(), None
        ranks = f"{zlib.crc32(repr(who.ranks).encode()):08x}"
        attempt = f"api/{ranks}/{next(_RUNS[ranks])}"
        self._identity = RankIdentity(detect(os.environ).kind, who.own, len(who.ranks), 0, 1, 1, "", 0, attempt=attempt)
        self._exchange = Exchange(self._store, self._identity, timeout_s, until=self._end)

    def play(self, prepare: Prepare) -> Report:
        """Agree, measure, gather what the nodes say of themselves, and return the report."""
        if self._who.backend == "nccl":
            import torch

            torch.cuda.set_device(self._who.device)  # which each thread has one of
        options, question, bands, config, infos, hosts = self._agree(prepare)
        self._identity = _placed(self._identity, hosts)
        look = (
            NodeSnapshot(self._hostname, min(LOOK_S, self._timeout_s / 2)) if self._identity.local_rank == 0 else None
        )
        if look:
            look.start()
        recorder = None
        if self._identity.rank == 0:
            kind, ranks = self._identity.kind, self._identity.ranks
            recorder = Recorder(options, question, Participants(kind, ranks, hosts, config.backend), bands)
            joining.record_participants(recorder, kind, infos, config)
        if config.apart:
            share_gpus(self._exchange, look, self._hostname, hosts)
        self._measure(
            RankContext(
                options=options,
                identity=self._identity,
                host=self._host,
                config=config,
                device=self._who.on,
                hosts=hosts,
                look=look,
                exchange=self._exchange,
                set_phase=self._set_phase,
                recorder=recorder,
            )
        )
        captures = gather_captures(self._exchange, look, self._hostname, hosts)
        return self._everywhere(recorder.report(recorder.take_captures(captures or ())) if recorder else None)

    def _agree(
        self, prepare: Prepare
    ) -> tuple[Options, Question, Sequence[Band], RunConfig, list[RankInfo], tuple[str, ...]]:
        """Make the request, the same on all ranks. Raises UsageError on all of them. Only rank 0 has the infos."""
        asked = None
        try:
            asked = prepare(self._who.backend)
            local = min(len(self._who.ranks), detect(os.environ).local_world_size or 1)
            info = joining.rank_info(asked[0], self._hostname, self._host, self._who.backend, self._who.device, local)
        except UsageError as error:
            info = RankInfo(self._hostname, 0, {}, error=str(error))
        infos = [RankInfo(**each) for each in self._exchange.collect(asdict(info)) or ()]
        own = [asdict(agree_on(infos, 1)), [each.host for each in infos]] if infos else None
        config, hosts = self._exchange.share(own)
        if asked is None or config["error"]:
            raise UsageError(config["error"] or info.error)
        return *asked, RunConfig(**config), infos, tuple(hosts)

    def _measure(self, run: RankContext) -> None:
        """Learn what to expect, and sweep over a group of our own."""
        learn(run)
        with self._own_group() as group:
            sweep(replace(run, group=group))

    def say_left(self) -> None:
        """Let the other ranks know that this one has ended by itself."""
        with contextlib.suppress(RuntimeError):  # torch's, of a store that has ended with its rank
            self._store.set(self._left(self._who.own), "1")

    def silent(self, within_s: float) -> tuple[int, ...]:
        """Return the ranks that do not leave `within_s` seconds after this one: they have ended, or are stopped."""
        self.say_left()
        ranks, late = [rank for rank in range(len(self._who.ranks)) if rank != self._who.own], False
        until = time.monotonic() + within_s
        with contextlib.suppress(RuntimeError):
            while ranks and not late:
                late = time.monotonic() > until
                ranks = [rank for rank in ranks if not self._store.check([self._left(rank)])]
                time.sleep(_WORD_POLL_S)
        return tuple(ranks) if late else ()

    def _left(self, rank: int) -> str:
        return key(self._identity, f"left/{rank}")

    def leave(self, within_s: float) -> None:
        """Leave nothing of ours that the caller's process could wait for, whatever a thread of ours is stuck in."""
        self._end = -math.inf  # one that comes back goes no further
        groups.watch_again(self._watching)
        if self._group:
            self._give_up(self._group, within_s)

    def _give_up(self, group: Any, within_s: float = groups.ABORT_S) -> None:
        """Abort our group, as an orderly end would wait for a kernel that never ends."""
        if not groups.abort(self._who.backend, group, within_s):
            _STUCK.append(group)
        groups.forget(group)
        self._group = None

    def _set_phase(self, phase: str) -> None:
        """Raise ProbeError before a step that would begin too late, and let gloo's calls in it end with our time.

        An abort ends those of NCCL, and none of gloo.
        """
        self.phase, left_s = phase, self._end - time.monotonic()
        if left_s <= 0:
            raise ProbeError(f"rank {self._identity.rank}: no time was left for {phase}")
        if self._group and self._who.backend == "gloo":
            from torch.distributed import distributed_c10d

            distributed_c10d._set_pg_timeout(timedelta(seconds=left_s), self._group)

    @contextlib.contextmanager
    def _own_group(self) -> Iterator[Any]:
        """Make a group over the caller's ranks, whose calls end with ours, and remove it again."""
        import torch.distributed as dist

        left_s = max(1.0, self._end - time.monotonic())
        group = self._group = self._made(left_s)
        timer = threading.Timer(left_s, groups.abort, (self._who.backend, group))
        timer.daemon = True
        timer.start()
        try:
            _refuse_without_abort(self._who.backend, group)
            yield group
        except BaseException as error:
            self._give_up(group)
            if isinstance(error.__cause__, RuntimeError) and time.monotonic() >= self._end:  # torch's, aborted by us
                late = f"{self.phase} had not ended after {self._timeout_s:.0f} s"
                raise ProbeError(f"rank {self._who.own}: {late} ({reason(error.__cause__)})") from error
            raise
        finally:
            timer.cancel()
        dist.destroy_process_group(group)
        self._group = None

    def _made(self, left_s: float) -> Any:
        """Make the group by the function below torch's new_group.

        That one counts groups, which ranks outside would not, and gives groups of the same ranks one name, whose keys
        of an earlier call are still in the store.
        """
        import torch.distributed as dist

        c10d, who = dist.distributed_c10d, self._who
        with groups.unwatched():
            group, _ = c10d._new_process_group_helper(
                len(who.ranks),
                who.own,
                list(who.ranks),
                who.backend,
                dist.PrefixStore(key(self._identity, "group"), self._store),
                f"ncclprobe/{self._identity.attempt}",
                timeout=timedelta(seconds=left_s + _TORCHS_OWN_S if who.backend == "nccl" else left_s),
            )
        c10d._world.pg_group_ranks[group] = {rank: own for own, rank in enumerate(who.ranks)}
        return group

    def _everywhere(self, report: Report | None) -> Report:
        """Return rank 0's report on every rank, once all have reached the end."""
        text = as_json.render(report) if report else ""
        count = int(self._exchange.share(-(-len(text) // _CHUNK)))
        parts = [self._exchange.share(text[n * _CHUNK : (n + 1) * _CHUNK]) for n in range(count)]
        self._exchange.collect(None)
        return report or as_json.parse("".join(parts), "the report of rank 0")


def _placed(identity: RankIdentity, hosts: Sequence[str]) -> RankIdentity:
    """Return `identity` with its place among the ranks of its host."""
    here = [rank for rank, host in enumerate(hosts) if host == hosts[identity.rank]]
    return replace(
        identity, local_rank=here.index(identity.rank), local_ranks=len(here), nnodes=len(dict.fromkeys(hosts))
    )
