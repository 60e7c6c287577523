"""What every role of a gather needs: identity, deadlines, this node's facts, and output."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.checks.sync.roster import missing as absent_nodes
from ncclprobe.cluster.rails.lead import RailsWanted
from ncclprobe.cluster.rendezvous.messages import Leave
from ncclprobe.cluster.rendezvous.token import Token
from ncclprobe.engine.collect import Heard, capture_facts
from ncclprobe.engine.judge import Share
from ncclprobe.engine.workers import Workers
from ncclprobe.facts.launcher import Launch
from ncclprobe.host import SAMPLE, Question
from ncclprobe.host.capture import Replay, dump
from ncclprobe.model import bounds
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.registry import Collector
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Every, Snapshot
from ncclprobe.model.units import printable
from ncclprobe.model.values import Struct, asdict, field

_LATEST_SHARE = 0.75
"""Share of a run's time after which waiting for nodes ends, however late this one started."""
_MESH_S = 45.0
PARTING_S = 1.0
"""Time for the last message to peers that may be gone."""


class Times(Struct, frozen=True):
    """Deadlines of each part of a run, on time.monotonic(), so that `timeout_s` holds even if a peer hangs."""

    start: float
    timeout_s: float
    wait_s: float

    def by(self, share: float) -> float:
        """Return the deadline of a part that may use this `share` of the run's time."""
        return self.start + share * self.timeout_s

    @property
    def end(self) -> float:
        """Deadline of the whole run."""
        return self.by(1.0)

    @property
    def allowed_s(self) -> float:
        """How long other nodes may take to join."""
        return min(self.wait_s, bounds.MEETING_SHARE * self.timeout_s)

    def meeting(self) -> float:
        """Return the deadline for meeting other nodes: sooner than `allowed_s` if this one started late."""
        return min(time.monotonic() + self.allowed_s, self.by(_LATEST_SHARE))

    def mesh(self) -> float:
        """Return the deadline for testing paths."""
        return min(time.monotonic() + _MESH_S, self.by(0.85))

    def rails(self) -> float:
        """Deadline for testing rails."""
        return self.by(0.9)


Judge = Callable[[Sequence[Snapshot], Sequence[str], Sequence[str]], Report]
"""Takes the snapshots, the names of missing nodes and the remarks; returns the report, already delivered."""


class NodePlace(Struct, frozen=True):
    """This process's place in the assembly, and what it needs for it.

    `keep`: folder for captures, if any. `attempt`: torchrun's restart count. `leaves`: each node's exit, by name.
    `progress` shows what is going on. `rails`: the rail tests, if any. `workers` makes workers that judge the captures
    of
    many nodes as they arrive, if that pays.
    """

    launch: Launch
    token: Token
    times: Times
    collectors: Sequence[Collector]
    backend: str
    judge: Judge
    leaves: Callable[[Report], Mapping[str, Share]]
    given: Mapping[Question, str] = field(default_factory=dict)
    keep: Path | None = None
    attempt: str = "0"
    progress: Callable[[str], None] = lambda what: None
    rails: RailsWanted | None = None
    workers: Callable[[], Workers | None] = lambda: None

    @property
    def node_rank(self) -> int:
        """This node's number; if the launcher does not give it, assume that ranks are dealt node by node."""
        launch = self.launch
        if launch.node_rank is not None:
            return launch.node_rank
        return (launch.rank or 0) // (launch.local_world_size or 1)

    @property
    def nnodes(self) -> int:
        """Number of nodes that the job should have."""
        return self.launch.nnodes or 1


class LocalNode(Struct):
    """This node's answers, its ranks' answers, and the samples measured since."""

    name: str
    answers: Heard
    ranks: dict[int, Heard]
    snapshot: Snapshot

    def add(self, name: str, measured: Any) -> None:
        """Keep the sample `measured` as `name`."""
        self.answers[SAMPLE, name] = json.dumps(asdict(measured))

    def text(self) -> str:
        """Return this node as the text of a capture."""
        return dump(self.answers, self.name, ranks=self.ranks)

    def replay(self) -> Replay:
        """Return this node as a replayed capture."""
        return Replay(self.answers, self.name, older=False, ranks=self.ranks)

    def snapshot_with_samples(self, collectors: Sequence[Collector]) -> Snapshot:
        """Return this node's facts, samples included."""
        return capture_facts(self.replay(), collectors)


def alone(part: NodePlace, local: LocalNode, why: str) -> ExitCode:
    """Judge only this node, because the others are lost."""
    snapshots = [local.snapshot_with_samples(part.collectors)]
    return ExitCode(part.judge(snapshots, missing(snapshots), [why, describe_meeting(part)]).exit_code)


def missing(snapshots: Sequence[Snapshot], came: Collection[int] = ()) -> tuple[str, ...]:
    """Return the nodes that are in none of `snapshots` and whose node rank did not join."""
    launches = {s.node: launch for s in snapshots if isinstance(launch := s.facts.get(Launch), Launch)}
    return absent_nodes(Every(launches), came)


def describe_meeting(part: NodePlace) -> str:
    """Describe how the nodes met, for users who debug ports and tokens."""
    launch = part.launch
    origins = dict(launch.origins)
    where = f"{launch.master_addr} ({origins.get('master_addr', 'given')}), port {launch.master_port}"
    through = "through torchrun's store at" if launch.agent_store else "at"
    return f"{launch.kind} started {part.nnodes} nodes, to meet {through} {where}; token: {part.token.origin}"


def say(line: str) -> None:
    with contextlib.suppress(OSError):
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # of the line that shows how far this run is
        print(f"{clear}ncclprobe: {printable(line)}", file=sys.stderr, flush=True)


def code_of(leave: Leave) -> ExitCode:
    """Return this process's exit code: always a verdict, whatever the peer sent."""
    verdicts = (ExitCode.OK, ExitCode.INCONCLUSIVE, ExitCode.FAIL)
    return next((code for code in verdicts if code == leave.exit_code), ExitCode.INCONCLUSIVE)
