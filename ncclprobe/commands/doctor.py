"""``ncclprobe doctor``: is this machine fit for an NCCL job? Also ``torchrun -m ncclprobe.doctor``."""

import argparse
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from ncclprobe import bounds, interrupt
from ncclprobe.checks.sync.roster import missing
from ncclprobe.commands import arguments
from ncclprobe.engine import diagnose
from ncclprobe.engine.observe import observed, of_capture, replayed
from ncclprobe.errors import UsageError
from ncclprobe.facts.data_paths import AskedPath, AskedPaths, Use, writes_to
from ncclprobe.facts.data_rates import rated
from ncclprobe.facts.launcher import Flags, Launch, detect, half_given
from ncclprobe.host import SAMPLE, Question, files
from ncclprobe.host.capture import Replay, dump
from ncclprobe.host.patience import until
from ncclprobe.host.run_log import RunLog, is_run_log
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.fleet import Every
from ncclprobe.model.registry import discover
from ncclprobe.model.report import Report
from ncclprobe.model.rules import Collector
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import asdict
from ncclprobe.report import delivery
from ncclprobe.units import parse_size, size

_WAIT_S, _TIMEOUT_S = 30.0, 120.0
_PATH_BYTES = 64 << 20
_LAST_RESORT_S = 5.0  # after --timeout, for a process that cannot end by itself
_MOST_LINES = 8
_LONGEST_NAME = 253  # of DNS: RFC 1035, 2.3.4
_LONGEST_PATH = 4095  # PATH_MAX, without its end
_EXIT_CODES = """\
exit codes:
  0  nothing fails
  2  wrong usage, or a file that cannot be read or written
  3  something required could not be checked
  4  something fails"""


def main(argv: Sequence[str]) -> int:
    """Collect or replay, judge, report; returns the exit code. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.expect_gpus and options.backend == "gloo":
        raise UsageError("--expect-gpus asks for GPUs and --backend gloo for none; leave one out")
    options.timeout = options.timeout or (math.inf if options.captures else _TIMEOUT_S)
    flags = Flags(options.nnodes, options.node_rank, options.master_addr, options.master_port)
    _refuse_half_given(flags, options)
    launch = detect(os.environ, flags)
    if options.paths and (options.captures or len(options.paths) > bounds.DATA_PATHS):
        why = "and captures exclude each other" if options.captures else f"may be given {bounds.DATA_PATHS} times"
        raise UsageError(f"--path {why}")
    if (options.path_rates or options.path_bytes) and not options.paths:
        raise UsageError("--path-rates needs --path: name what is to be measured")
    if options.path_bytes and not options.path_rates:
        raise UsageError("--path-bytes bounds what --path-rates measures; give that as well")
    options.path_bytes = options.path_bytes or _PATH_BYTES
    if options.baseline and not (options.path_rates or options.captures):
        raise UsageError("--baseline judges what --path-rates measures; give that as well, or captures that hold it")
    if options.code and options.captures:
        raise UsageError("--code and captures exclude each other: a capture holds what --code told when it was taken")
    if options.keep and options.captures:
        raise UsageError("--keep and captures exclude each other: they are kept already")
    if logs := [path for path in options.captures if is_run_log(path)]:
        if options.baseline:
            raise UsageError("--baseline is for rates of paths; judge a run.jsonl with --expect")
        return _judge_run(options, argv, logs)
    if options.expect or options.rejudge:
        raise UsageError("--expect and --rejudge are for a measured run: give its run.jsonl among the captures")
    interrupt.end_by(options.timeout + _LAST_RESORT_S)
    question, collectors = (
        diagnose.doctor_question(options, argv),
        discover("ncclprobe.facts", Collector, diagnose.MACHINE),
    )

    def judge(snapshots: Sequence[Snapshot], missing: Sequence[str] = (), remarks: Sequence[str] = ()) -> Report:
        report = diagnose.diagnose(question, snapshots, missing=missing, notes=remarks)
        delivery.deliver(report, options)
        return report

    if options.captures:
        return _deliver(options, question, partial(_judge_captures, options, question, collectors))
    given: dict[Question, str] = {(SAMPLE, "flags"): json.dumps(flags.given)} if flags.given else {}
    if options.paths:
        asked = AskedPaths(tuple(dict.fromkeys(options.paths)), options.path_bytes if options.path_rates else 0)
        given[SAMPLE, "asked_paths"] = json.dumps(asdict(asked))
    if options.code:
        given[SAMPLE, "code"] = json.dumps({"folder": str(options.code)})
    if not _in_company(launch, options):
        if not launch.speaks_for_node and not launch.problems:
            return ExitCode.OK
        if options.keep:
            _make(options.keep)
        snapshot, answers = observed(collectors, question.clock + _look_s(options.timeout), given)
        if samples := _at_paths(snapshot, question.clock + _look_s(options.timeout)):
            answers |= {(SAMPLE, name): json.dumps(asdict(each)) for name, each in samples.items()}
            snapshot = of_capture(Replay(answers, snapshot.node, older=False), collectors)
        if options.keep:
            files.write(options.keep / files.named_after(snapshot.node), dump(answers, snapshot.node), private=True)
        return _deliver(options, question, partial(diagnose.diagnose, question, [snapshot]))
    from ncclprobe.cluster.gather import Part, Times, assemble
    from ncclprobe.cluster.rendezvous.token import find_token

    if options.keep and launch.node_rank == 0:
        _make(options.keep)
    token = find_token(os.environ, launch, trust=options.trust_network)
    times = Times(question.clock, options.timeout, options.wait or (options.timeout if token.made else _WAIT_S))
    if token.made:
        _print_lines(token.made, launch, options)
    whole = options.exit == "whole"
    leave = partial(diagnose.leaves, fail_on=options.fail_on, whole=whole)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return assemble(Part(launch, token, times, collectors, options.backend, judge, leave, given, options.keep, attempt))


def _at_paths(snapshot: Snapshot, deadline: float) -> Mapping[str, Any]:
    """What came of writing to and measuring the paths of --path from this node alone, as samples by their names."""
    if not (writes_to(snapshot) or rated(snapshot)):
        return {}
    from ncclprobe.cluster.gather.data import worked_alone  # imports that a doctor of one node does without

    return worked_alone(snapshot, deadline)


def _look_s(timeout_s: float) -> float:
    """Return how much of --timeout may go into looking, so that what was seen by then is judged within it."""
    return timeout_s - min(max(timeout_s / 10, 1.0), timeout_s / 2)


def _deliver(options: argparse.Namespace, question: diagnose.Question, judge: Callable[[], Report]) -> int:
    """Deliver what `judge` makes within --timeout, and return its exit code; it is left behind where time is over."""
    try:
        report = until(question.clock + options.timeout, judge)
    except TimeoutError:
        print("ncclprobe: no time was left to judge within --timeout; nothing was judged", file=sys.stderr, flush=True)
        return ExitCode.INCONCLUSIVE
    delivery.deliver(report, options)
    return report.exit_code


def _judge_captures(
    options: argparse.Namespace, question: diagnose.Question, collectors: Sequence[Collector]
) -> Report:
    """Judge the machines of captures. Raises UsageError."""
    snapshots = replayed(options.captures, collectors)
    absent = () if options.local else missing(Every({s.node: diagnose.launch_of(s) for s in snapshots}))
    return diagnose.diagnose(question, snapshots, missing=absent)


def _print_lines(secret: str, launch: Launch, options: argparse.Namespace) -> None:
    """Print the command line of each other node: it holds the secret that they need."""
    nodes = launch.nnodes or 1
    shared = ["--master-addr", launch.master_addr or "", "--master-port", str(launch.master_port)]
    shared += ["--backend", options.backend, "--timeout", f"{options.timeout:g}"]
    shared += [word for each in options.paths for word in ("--path", f"{each.path}:{each.use}")]
    shared += ["--path-rates", "--path-bytes", str(options.path_bytes)] if options.path_rates else []
    shared += ["--code", str(options.code)] if options.code else []
    print("ncclprobe: start the other nodes now, each with its own line:", file=sys.stderr)
    for rank in range(1, min(nodes, _MOST_LINES + 1)):
        words = ["ncclprobe", "doctor", "--nnodes", str(nodes), "--node-rank", str(rank), *shared]
        print(f"  NCCLPROBE_TOKEN={secret} {shlex.join(words)}", file=sys.stderr, flush=True)
    if nodes > _MOST_LINES + 1:
        print(f"  … and so on, up to --node-rank {nodes - 1}", file=sys.stderr, flush=True)


def _judge_run(options: argparse.Namespace, argv: Sequence[str], logs: Sequence[Path]) -> int:
    """Judge a measured run again, by its log and the captures of its nodes. Raises UsageError."""
    if len(logs) > 1:
        raise UsageError(f"{logs[1]}: a second run log; give one run.jsonl and the captures of its nodes")
    question = diagnose.ask(options, ("doctor", *argv), Job(local=options.local), diagnose.MEASURED)
    return _deliver(options, question, partial(_report_of_run, options, question, logs[0]))


def _report_of_run(options: argparse.Namespace, question: diagnose.Question, log: Path) -> Report:
    from ncclprobe.commands.run_files import expected_bands  # imports of what was measured, which others do without
    from ncclprobe.engine import measured

    run = measured.run_facts(RunLog.read(log))
    captures = [path for path in options.captures if path != log]
    snapshots = replayed(captures, discover("ncclprobe.facts", Collector, diagnose.MACHINE))
    if options.expect:
        run = measured.expecting(run, expected_bands(options.expect), options.expect)
    elif options.rejudge:
        run = measured.rejudged(run, snapshots)
    return diagnose.diagnose(question, snapshots, run)


def _below(limit: int) -> Callable[[str], int]:
    """A whole number from 1 up to `limit`, which is too many, for argparse."""

    def number(text: str) -> int:
        value = arguments.count(text)
        if value >= limit:
            raise argparse.ArgumentTypeError(f"{text} is more than {limit - 1}")
        return value

    return number


def _data_path(text: str) -> AskedPath:
    """A path and its use, for argparse."""
    path, colon, use = text.rpartition(":")
    for known in get_args(Use):
        if colon and use == known:
            return AskedPath(_absolute(path), known)
    return AskedPath(_absolute(text))


def _path_bytes(text: str) -> int:
    """A size within bounds, for argparse."""
    try:
        nbytes = parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not bounds.LEAST_RATE_BYTES <= nbytes <= bounds.MOST_RATE_BYTES:
        least, most = size(bounds.LEAST_RATE_BYTES), size(bounds.MOST_RATE_BYTES)
        raise argparse.ArgumentTypeError(f"{ascii(text)[:40]} is not between {least} and {most}")
    return nbytes


def _absolute(path: str) -> str:
    if not path or len(path) > _LONGEST_PATH or not path.isprintable():
        raise argparse.ArgumentTypeError(f"{ascii(path)[:80]} is no path")
    return os.path.abspath(path)  # noqa: PTH100 - asks no file system, which may hang


def _host(text: str) -> str:
    """A name or an address, for argparse."""
    if text.startswith("[") and text.endswith("]"):
        raise argparse.ArgumentTypeError(f"{text}: give an IPv6 address without brackets")
    if not 0 < len(text) <= _LONGEST_NAME or not re.fullmatch(r"[\w.:%-]+", text):
        raise argparse.ArgumentTypeError(f"{ascii(text)[:80]} is neither a host's name nor an address")
    return text


def _folder(text: str) -> Path:
    """A folder that is there, in full, for argparse."""
    path = Path(text)
    try:
        if not path.is_dir():
            raise argparse.ArgumentTypeError(f"{ascii(text)[:200]} is no folder")
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        raise argparse.ArgumentTypeError(f"{ascii(text)[:200]} cannot be looked at") from None


def _in_company(launch: Launch, options: argparse.Namespace) -> bool:
    """Whether there are other ranks or nodes to be heard. A launch that contradicts itself is judged alone."""
    several = launch.several_nodes or (launch.local_world_size or 1) > 1
    return several and not options.local and not any(not problem.harmless for problem in launch.problems)


def _make(folder: Path) -> None:
    """Raises UsageError before anything is looked at."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--keep {folder}: {error.strerror}; name a folder that can be written") from None


def _refuse_half_given(flags: Flags, options: argparse.Namespace) -> None:
    """Raises UsageError for flags that say too little, or something else than they seem to."""
    wrong = half_given(flags, os.environ)
    if wrong:
        raise UsageError(wrong)
    if flags.given and (options.captures or options.local):
        with_ = "captures" if options.captures else "--local"
        raise UsageError(f"--{next(iter(flags.given)).replace('_', '-')} and {with_} exclude each other")


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "doctor",
        "Check whether this machine, or a captured one, is fit for an NCCL job. Started on several nodes, by a "
        "launcher or with --nnodes, it also compares the nodes and probes the network between them.",
        _EXIT_CODES,
    )
    add = parser.add_argument
    add("captures", nargs="*", type=Path, metavar="CAPTURE",
        help="Judge these captures instead of this machine, one per node.")  # fmt: skip
    add("--backend", choices=("nccl", "gloo"), default="nccl",
        help="Check for a job with this library (default: %(default)s).")  # fmt: skip
    add("--local", action="store_true", help="Check this node only, even under a launcher.")
    add("--nnodes", type=_below(bounds.HOST_NAMES + 1), metavar="N",
        help="Check N nodes together (default: as the launcher says).")  # fmt: skip
    add("--node-rank", type=int, metavar="R", help="Be node R of them, from 0 to N-1 (default: as the launcher says).")
    add("--master-addr", type=_host, metavar="HOST", help="Reach node 0 at HOST (default: as the launcher says).")
    add("--master-port", type=_below(1 << 16), metavar="PORT",
        help="Reach node 0 at PORT, the one that the job will use (default: as the launcher says).")  # fmt: skip
    add("--wait", type=arguments.positive, metavar="SECONDS",
        help=f"Wait so many seconds for other nodes (default: {_WAIT_S:g}; all of --timeout where node 0 prints the "
        "lines that start the others).")  # fmt: skip
    add("--trust-network", action="store_true",
        help="Accept any process on this network as a node of the job, without a proof of identity.")  # fmt: skip
    add("--exit", choices=("own", "whole"), default="own",
        help="Exit with the code of each node's own part, or of the whole job (default: %(default)s).")  # fmt: skip
    add("--keep", type=Path, metavar="DIR", help="Write the captures of all nodes to this folder of node 0.")
    add("--path", type=_data_path, action="append", default=[], dest="paths", metavar="PATH[:USE]",
        help="Look at what every node sees at this path, which a job uses to `read` (default), to `write`, or as a "
        "folder for `checkpoint`s; the last two write small files there and remove them. May be given several "
        "times.")  # fmt: skip
    add("--path-rates", action="store_true",
        help="Also measure each path: sequential and random reads and opens of small files where a job reads, writes "
        "with fsync where it writes, reads of what was written where it keeps checkpoints; on each node apart, at most "
        "8 at once, then on all at once.")  # fmt: skip
    add("--path-bytes", type=_path_bytes, metavar="SIZE",
        help=f"Move at most so much in one measurement of one node, which also ends after a second (default: "
        f"{_PATH_BYTES >> 20}M).")  # fmt: skip
    add("--baseline", metavar="PATH",
        help="Judge rates of paths, measured now or held by captures, by this file of `ncclprobe "
        "baseline`.")  # fmt: skip
    add("--code", type=_folder, metavar="DIR",
        help="Compare the code in this folder, its commit and all installed packages between nodes.")  # fmt: skip
    add("--expect-gpus", type=arguments.count, metavar="N", help="Fail where fewer than N GPUs are usable.")
    add(
        "--mixed-gpus", action="store_true", help="Nodes have different numbers of GPUs on purpose: do not fail for it."
    )
    arguments.selection(parser)
    add("--expect", metavar="FILE", help="Judge a run.jsonl by the numbers in FILE: TOML, or an earlier report.")
    add("--rejudge", action="store_true", help="Judge a run.jsonl by what its nodes should reach by now.")
    add("--timeout", type=arguments.positive, metavar="SECONDS",
        help=f"End after so many seconds (default: {_TIMEOUT_S:g}; of captures: when all are judged).")  # fmt: skip
    arguments.arguments(parser)
    return parser
