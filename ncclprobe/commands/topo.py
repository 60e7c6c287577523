"""``ncclprobe topo [FILE]``: how GPUs and NICs reach each other, as ``nvidia-smi topo`` prints it here or in FILE, and
what looks wrong in that.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from ncclprobe import page
from ncclprobe.commands import arguments
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import conclude, judge
from ncclprobe.facts.topo_matrix import Matrix, parse
from ncclprobe.host import files
from ncclprobe.host.live import LiveHost
from ncclprobe.model import bounds
from ncclprobe.model.errors import HostError, ParseError, UsageError
from ncclprobe.model.findings import Evidence, Severity, Status, Verdict
from ncclprobe.model.layout import table, wrap
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.units import plural, printable
from ncclprobe.model.values import asdict, replace
from ncclprobe.nccl.from_matrix import ASSUMED, facts_of
from ncclprobe.report import delivery

_CELL = 4
"""Characters of the longest cell: NV18, NODE."""
NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")


def main(argv: Sequence[str]) -> int:
    """Print every matrix, and what looks wrong in it. Raises UsageError for a refused text, with the cause."""
    options = _parser().parse_args(argv)
    text = _saved(options.file) if options.file else _printed_here()
    source = str(options.file or "nvidia-smi topo -m")
    try:
        matrices = parse(text)
    except ParseError as error:
        raise UsageError(f"{source}: {printable(str(error))}") from None
    verdicts = judged(matrices, source)
    unsure = any(matrix.incomplete for matrix in matrices) or any(v.status is Status.UNKNOWN for v in verdicts)
    status, code = conclude(verdicts, options.fail_on, inconclusive=unsure)
    if options.json:
        found = [{"check": v.id, "matrix": int(v.node or 0), **asdict(f)} for v in verdicts for f in v.findings]
        unknown = [{"check": v.id, "matrix": int(v.node or 0), "why": v.why} for v in verdicts if v.why]
        told = {"matrices": [asdict(matrix) for matrix in matrices], "findings": found, "unknown": unknown}
        arguments.write_json(options, "topology", {**told, "status": status, "exit_code": int(code)})
    if options.json != "-":
        print("\n\n".join("\n".join(_matrix_lines(matrix)) for matrix in matrices))
        print("\n" + "\n".join(_finding_lines(verdicts, several=len(matrices) > 1)))
        print(f"\n{status.value.upper()}  (exit {int(code)})")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "topo",
        "Show how GPUs and NICs are connected, from `nvidia-smi topo -m` here or in FILE, and what looks wrong.",
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="Read the output of `nvidia-smi topo -m` from FILE (default: run it).",
    )
    arguments.json_option(parser)
    parser.add_argument(
        "--fail-on",
        choices=("warn", "fail"),
        default="fail",
        help="Exit with 4 at this severity or above (default: %(default)s).",
    )
    return parser


def _saved(path: Path) -> str:
    text = files.read_start(path, limit=bounds.TOPO_BYTES + 1)
    if len(text) > bounds.TOPO_BYTES:
        raise UsageError(f"{path}: larger than {bounds.TOPO_BYTES >> 20} MiB: not the output of `nvidia-smi topo -m`")
    return text


def _printed_here() -> str:
    host = LiveHost((), lambda _name: False)
    try:
        return host.ask("run", "nvidia-smi", "topo", "-m")
    except HostError as error:
        raise UsageError(f"{error}; give a file with the output of `nvidia-smi topo -m`") from None
    finally:
        host.close()


def _matrix_lines(matrix: Matrix) -> Iterator[str]:
    yield f"{matrix.kind}: {plural(len(matrix.gpus), 'GPU')}, {plural(len(matrix.nics), 'NIC')}"
    names = (*matrix.gpus, *matrix.nics)
    rows = [[name, *(matrix.links[name].get(other, "-") for other in names)] for name in names if name in matrix.links]
    yield "\n\n".join(
        _aligned([[row[0], *row[part]] for row in [["", *names], *rows]]) for part in _column_ranges(names)
    )
    if matrix.kind != "p2p":
        affinities = zip(matrix.gpus, matrix.cpu_affinity, matrix.numa_affinity, matrix.gpu_numa_id, strict=True)
        known = [[gpu, *("-" if value is None else value for value in values)] for gpu, *values in affinities]
        yield ""
        shown = [["GPU", "CPUs", "NUMA", "GPU NUMA", "nearest NICs"], *known]
        taken = sum(max(map(len, column)) + 2 for column in zip(*(row[:4] for row in shown), strict=True))
        near = [wrap("", nearest(matrix, gpu), max(delivery.width() - taken, 12)) for gpu in matrix.gpus]
        yield _aligned([shown[0], *([*row, "\n".join(nics)] for row, nics in zip(known, near, strict=True))])
    yield from (f"incomplete: {printable(what)}" for what in matrix.incomplete)


def _finding_lines(verdicts: Sequence[Verdict], several: bool) -> Iterator[str]:
    """Yield the checks' findings with their remedies, and the unknowns."""
    told: dict[str, None] = {}
    yield from wrap("what looks wrong ", f"(assumed: {ASSUMED}):", delivery.width())
    for verdict in verdicts:
        place = f"matrix {verdict.node}, " if several else ""
        for finding in verdict.findings:
            said = f"{place}{verdict.id} {finding.line}"
            yield from wrap(f"  {finding.severity.value.upper():<8}", said, delivery.width())
            if finding.severity is not Severity.NOTE:
                yield from wrap("          fix: ", finding.remedy, delivery.width())
        if verdict.findings and verdict.id not in told:
            told[verdict.id] = None
            yield f"          more: ncclprobe explain {verdict.id}"
        if verdict.status is Status.UNKNOWN:
            yield from wrap("  UNKNOWN ", f"{place}{verdict.id}: {verdict.why}", delivery.width())
    if not any(verdict.findings or verdict.status is Status.UNKNOWN for verdict in verdicts):
        yield "  nothing"
    if told:
        yield from ("", f"online: {page(next(iter(told)))}")


def nearest(matrix: Matrix, gpu: str) -> str:
    """Return the NICs nearest to a GPU, with the path to them; empty without NICs or without the GPU's row."""
    near = {nic: link for nic, link in matrix.links.get(gpu, {}).items() if nic in matrix.nics}
    best = next((link for link in NEAREST_FIRST if link in near.values()), "")
    return best and f"{best}: {' '.join(nic for nic, link in near.items() if link == best)}"


def _column_ranges(names: Sequence[str]) -> Iterator[slice]:
    """Yield the columns of each part of a matrix that is wider than the terminal; column 0 holds the names."""
    room, first = delivery.width() - max(map(len, names), default=0), 1
    wide = [max(len(name), _CELL) + 2 for name in names]
    for last in range(1, len(wide) + 1):
        if last == len(wide) or sum(wide[first - 1 : last + 1]) > room:
            yield slice(first, last + 1)
            first = last + 1


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(table([["\n".join(map(printable, cell.split("\n"))) for cell in row] for row in rows]))


_OF_PATHS = ("nvl.links", "ib.gdr/gpu-near", "ib.gdr/gdr")
_OF_PEERS = ("gpu.p2p",)


def judged(matrices: Sequence[Matrix], source: str) -> tuple[Verdict, ...]:
    """Return the verdicts on each matrix, whose number is its node. `source` is what was read."""
    known = {check.key: check for check in every_check(MACHINE)}
    found: list[Verdict] = []
    for number, (matrix, peers) in enumerate(_with_p2p_tables(matrices), start=1):
        keys = (*(_OF_PATHS if matrix.kind != "p2p" else ()), *(_OF_PEERS if peers or matrix.kind == "p2p" else ()))
        snapshot = Snapshot(str(number), facts_of(matrix, peers))
        found += judge([snapshot], [known[each] for each in keys], Job())
    return tuple(_limit_to_text(source, verdict) for verdict in found)


def _with_p2p_tables(matrices: Sequence[Matrix]) -> Iterator[tuple[Matrix, Matrix | None]]:
    """Yield each matrix with the peer-to-peer status table after it, if that is of the same GPUs."""
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


def _limit_to_text(source: str, verdict: Verdict) -> Verdict:
    """Rest findings on the text alone, not on the files that a check would read on a machine."""
    findings = tuple(replace(finding, evidence=(Evidence(source),)) for finding in verdict.findings)
    return replace(verdict, findings=findings)
