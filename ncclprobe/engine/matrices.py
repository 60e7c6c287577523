"""What the checks say of matrices of ``nvidia-smi topo``: the same checks, of the facts that a matrix yields."""

from collections.abc import Iterator, Sequence

from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.facts.topo_matrix import Matrix
from ncclprobe.model.findings import Evidence, Verdict
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.topology.from_matrix import facts_of

_OF_PATHS = ("nvl.links", "ib.gpu-near", "ib.gdr")
_OF_PEERS = ("gpu.p2p",)


def judged(matrices: Sequence[Matrix], source: str) -> tuple[Verdict, ...]:
    """Return the verdicts on each matrix, whose number is their node. `source` is what was read."""
    known = {check.id: check for check in every_check(MACHINE)}
    found: list[Verdict] = []
    for number, (matrix, peers) in enumerate(_paired(matrices), start=1):
        ids = (*(_OF_PATHS if matrix.kind != "p2p" else ()), *(_OF_PEERS if peers or matrix.kind == "p2p" else ()))
        snapshot = Snapshot(str(number), facts_of(matrix, peers))
        found += judge([snapshot], [known[each] for each in ids], Job())
    return tuple(_from(source, verdict) for verdict in found)


def _paired(matrices: Sequence[Matrix]) -> Iterator[tuple[Matrix, Matrix | None]]:
    """Yield each matrix, with the table of peer-to-peer status right behind it, if that is of the same GPUs."""
    waiting: Matrix | None = None
    for matrix in matrices:
        if waiting and matrix.kind == "p2p" and matrix.gpus == waiting.gpus:
            yield waiting, matrix
            waiting = None
            continue
        if waiting:
            yield waiting, None
        waiting = matrix
    if waiting:
        yield waiting, None


def _from(source: str, verdict: Verdict) -> Verdict:
    """The findings rest on the text alone, and not on the files that a check would read on a machine."""
    findings = tuple(replace(finding, evidence=(Evidence(source),)) for finding in verdict.findings)
    return replace(verdict, findings=findings)
