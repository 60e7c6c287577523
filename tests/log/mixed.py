"""Lines and logs that are put together at random: what is read in them, and what they show of a job and its ranks."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ncclprobe.logs import outcome, rank_ends, timeline
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.prefix import Habit, cleaned, glog_at_start, in_year, shipped_record, time_at_start
from ncclprobe.logs.reader import read
from tests.localise.mixed import Draw
from tests.log.events import PREFIXES, SUMMARY, WARN
from tests.log.whole import RULE

Rows = Iterator[tuple[str, object]]
TAILS = (
    "an error", WARN, "[n7]>n1:7:9 [0] x.cc:9 NCCL WARN y", "n1:12345678901:1 [0] NCCL WARN z", ":7:9 [0] NCCL WARN z",
    "n1:1:1 [0] NCCL INFO Channel 00 n2:5:5 [1] NCCL WARN x", "a:b:9 [0] d.cc:9 NCCL INFO x  ",
    "at n1:7:9 [0] NCCL INFO", "x 2026-11-22 10:00:00 n1:7:9 [0] a:b.cc:9 NCCL WARN q", "INFO x - rank 3: x",
    "Exception - rank 3: x", "  x error  ", "error: rank 3: x", "x: rank 3/8 > y", "at: GLOBAL_RANK: 3, x",
    "MPI size: 4, MPI local size: 2, rank: 1", "\n",
    *(f"{level} x" for level in ("DEBUG:", "[WARN]", "WARNING", "CRITICAL", "- FATAL", "NOTE:", "ERRORS")),
    "rank  : 3", "C 39 40] x", "trainer.py - x", "7 - levanter.x - y", "D 1 2] x", "[x.py:7] y", "n1 x[7]: y",
    "n1 x: y", "INFO x: y")  # fmt: skip
TIMES = (
    "Jan 1 04:05:06", "Feb 2 04:05:06", "Mar 3 04:05:06", "Apr 4 04:05:06", "May 5 04:05:06", "Jun 6 04:05:06",
    "Jul 7 04:05:06", "Aug 8 04:05:06", "Sep 9 04:05:06", "Oct 10 04:05:06", "Nov 11 04:05:06", "Dec 12 04:05:06",
    "13/01/2026 01:02:03", *(f"2026-11-22 10:00:00.25{zone}" for zone in ("Z", "+05:30", "-0330", " +0100", "x")),
    "2026-11-22 10:00:60", "Mon, 02 Feb 2026 01:02:03", "Tue Feb  3 01:02:03 2026", "2026/02/30 01:02:03",
    "0000-01-01 00:00:00", "1795341600.5", "[2026-11-22,10:00:00]", "10:00:00", "",
    *(f"[{level}0222 10:00:00.5 9 x.cc:7] " for level in "IWEFCD"), "W222 1:00:00 x:7]",
    *(f"{level} 11-22 10:00:00 [x.py:7] " for level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL")),
    *(f"[NeMo {level} 2026-01-18 07:39:42 x:7] " for level in "DIWEFC"), "[W x.cpp:7] ", "9999-12-31 23:59:59-01:00",
)  # fmt: skip
MOMENTS = ("2026-11-22T10:00:00Z", 1795341600, 1795341600.5, "1795341600000", 1795341600000000, 10**9, 10**11,
           10**18, 10**20, "1" * 20, "x")  # fmt: skip
FIELDS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("log", "message", "msg", "MESSAGE", "textPayload", "line", "@message"), ("an error", " ", 7)),
    **dict.fromkeys(("text", "event", "body", "_raw"), ("a row",)),
    **dict.fromkeys(("error", "err", "exception", "reason"), ("why", "an")),
    **dict.fromkeys(("level", "severity", "levelname"), ("warning", "CRITICAL", "E", "odd", "note", "debug")),
    **dict.fromkeys(("time", "timestamp", "@timestamp", "ts", "receiveTimestamp", "asctime"), MOMENTS),
    **dict.fromkeys(("_HOSTNAME", "hostname", "host", "node", "node_name", "nodename"), ("n1", "n" * 300)),
    "__REALTIME_TIMESTAMP": MOMENTS, "instance": ("n2",), "labels": ({"node": "l1"},),
    "kubernetes": ({"host": "k1"}, {"node_name": "k2", "pod_name": "k3"}, {"pod_name": "k4"}, "x")}  # fmt: skip
WITHIN = ("jsonPayload", "fields", "data", "result", "_source", "attributes", "frob")
FRAME, FAILED = '  File "/job/train.py", line 12, in main', "Traceback (most recent call last):"
HEADS: Mapping[str, tuple[str, ...]] = {
    FAILED: (
        FRAME, FRAME, '  File "x.py", line 7', "    loss.backward()", "ValueError: no data  ", "FooError:",
        "no such shard", "zeta.Gone", "KeyError: 'x'", "Original Traceback (most recent call last):",
        "-- Process 1 terminated with", '"""', "pydantic.ValidationError: 1 validation error for C",
        "  Input is bad [type=a] [type=b]", "  field", "retrying now",
        "ray.exceptions.RayTaskError(KeyError): ray::f()", "HvdError: Missing ranks:", "0: [a, b]", "LookupError: y",
    ),
    f"ERROR | {FAILED}": ('INFO |   File "z.py", line 40, in f', "INFO | KeyError: 7", "WARN | x", "not of it",
                          f"INFO | {FAILED}", "KeyError: 8", "INFO |     f(x)", 'INFO | File "y.py", line 41'),
    "error:": ("x is gone", " ", f"{FAILED}"),
    "zeta: Fatal error: ": ("y is gone  ",),
    "thread 'main' panicked at src/main.rs:10:5:": ("shard 7 is gone",),
    "x errors.error_handler:{": ('  "message": {', '    "message": "KeyError: 7",', '  "message": "Second"',
                                 *["  x"] * 6),
    "RuntimeError: NCCL error in: x.cpp:1\nLast error:": ("socket failed", WARN),
    "Fatal error in MPI_Send: Other MPI error, error stack:": ("MPI_Send(186): MPI_Send(b=7) failed", "MPID(3): ",
                                                               "f(9)....: odd "),
    "Fatal error in x: Unknown error class, error stack:": ("MPI(1): a", "MPI(2)..: b", "not a call"),
    "Missing ranks:": ("0: [a, b]", "3: [b]", "  5", "7: x", "/job:w/replica:0/task:4"),
    "Timed out task names:": ("/job:w/replica:0/task:3",),
    RULE: ("There are not enough slots available in the system for x. And", "more  ", "a | b | c", RULE,
           "It all went on here as before."),
    "Failures:": tuple(SUMMARY.splitlines()[4:14]),
    "Root Cause (first observed failure):": tuple(SUMMARY.splitlines()[14:])}  # fmt: skip
OTHERS = ("", "[rank1]: step 7", "an error", "====", "----", "x failed", "ValueError: z")
LINES = (
    *["iteration {s:8d}/ 100 | loss 2.1"] * 4, "2026-11-23 10:{s:02d}:00 INFO step {s} done", "Training finished",
    "OK", "Killed", "zeta: error: slot {s} failed", "2026-11-23 10:{s:02d}:30 ERROR zeta: slot failed",
    "[rank{r}]: RuntimeError: CUDA error: x", "[rank{r}]: step {s} loss 2.0", "[rank{r}]: Connection closed by peer",
    "[rank{r}]: wait timed out, error", "x, as expected",
    f"[rank{{r}}]: {FAILED}\n[rank{{r}}]: {FRAME}\n[rank{{r}}]: ValueError: no data",
    f"{FAILED}\n{FRAME}\nKeyError: 'x'", "Restarting training, attempt {s}", '10.0.0.1 - "POST /v1/x HTTP/1.1" 200 OK',
    "Ran 3 tests in 0.1s", "train_runtime: {s}", "srun: error: n{r}: task {r}: Exited with exit code 1",
    "srun: error: n7: task 1: Killed", "worker 3 exited with code 7",
    "2026-11-23 10:{s:02d}:00 n{r}:7{r}:9 [0] NCCL INFO comm 0x1 rank {r} nranks 4 commId 0x{r} - Init START",
    "2026-11-23 10:{s:02d}:20 n{r}:7{r}:9 [0] NCCL INFO comm 0x1 rank {r} nranks 4 commId 0x7 - Init COMPLETE",
    "frame #1: 0x00007f", "n{r}:7{r}:9 [0] NCCL INFO misc/socket.cc:58 -> 3",
    "n{r}:7{r}:9 [0] NCCL INFO comm 0x1 rank 0 nranks 4 - Abort COMPLETE",
    "n{r}:7{r}:9 [0] x.cc:1 NCCL WARN socket failed", "[rank{r}]: Exception ignored in: <f>",
    "NVRM: Xid (PCI:0000:01:00): 79, failed", " 50%|##| {s}/99 [00:{s:02d}<00:10,  9.9s/it]",
    "train: 50%|##| {s}/99 [00:{s:02d}<00:10,  9.9it/s]", "map: 50%|##| {s}/99 [00:01<00:10, 9it/s]",
    "[rank{r}]: destroy_process_group() was not called before program exit", "world_size=4",
    "RuntimeError: x. See stack trace above", "2026-11-23 11:{s:02d}:00 [rank{r}]: heartbeat",
    "2026-11-23 11:{s:02d}:00 [rank{r}]: saving", "[default{r}]: step {s}", "terminate called",
    "[rank{r}]: Received a dump signal due to a collective timeout from rank 1",
    "n{r}:7{r}:9 [0] NCCL INFO Bootstrap : Using br-0a1b2c3d4e5f:172.17.0.1<0>")  # fmt: skip


def _event(e: LogEvent) -> str:
    return f"{e.line}:{e.rank}:{e.local_rank}:{e.host}:{e.pid}:{e.level}:{e.place}:{e.time_s}:{e.step}: {e.text[:200]}"


def _prefixes(draw: Draw) -> dict[str, object]:
    text = "".join(draw.choices(PREFIXES, k=draw.choice((0, 1, 1, 2, 2, 3)))) + draw.choice(TAILS)
    habit = Habit(draw.odd(0.3), draw.odd(0.3), draw.odd(0.3))
    return {"text": repr(text), "habit": f"{habit}", "events": [*map(_event, cleaned(text.encode(), habit, 7))]}


def _record(draw: Draw) -> dict[str, object]:
    record = {name: draw.choice(FIELDS[name]) for name in draw.sample([*FIELDS], draw.choice((1, 2, 3, 5, 8)))}
    inner = {name: draw.choice(FIELDS[name]) for name in draw.sample([*FIELDS], draw.choice((1, 2, 4)))}
    text = json.dumps(record | ({draw.choice(WITHIN): inner} if draw.odd(0.5) else {}))
    return {"text": text[:300], "read": str(shipped_record(text.encode()))[-400:]}


def _paragraph(draw: Draw) -> dict[str, object]:
    head = draw.choice([*HEADS])
    more = [*HEADS[head]] if draw.odd(0.2) else draw.choices(HEADS[head], k=draw.choice((0, 1, 2, 3, 5, 8)))
    lines = [draw.choice(OTHERS) if draw.odd(0.12) else each for each in (*more, *[RULE] * draw.odd(0.1))]
    own, indent = "[rank3]: " * draw.odd(0.4), "    " * draw.odd(0.1)
    lines = [("[rank0]: " if draw.odd(0.05) else own) + indent + each for each in (*head.split("\n"), *lines)]
    log = read([("a", ["\n".join((*lines, "")).encode()])], ("no socket", "is gone"))
    return {"text": lines, "events": [*map(_event, log.events)]}


NAMES = (("train.log",), ("train.log",), ("rank0.log", "rank1.log"), ("a.0", "a.1", "a.2"), ("x", "rank_2.log"))
SIGNS = ("no socket", "socket failed", "Abort COMPLETE")


def _log(draw: Draw) -> dict[str, object]:
    texts, pool = {}, draw.sample(LINES, draw.choice((3, 5, 8)))
    for name in draw.choice(NAMES):
        step, lines = 0, list[str]()
        for _ in range(draw.choice((1, 3, 8, 14, 30))):
            step += draw.choice((0, 1, 1, 1, 2))
            lines.append(draw.choice(pool).format(s=step % 60, r=draw.choice((0, 1, 1, 2))))
        texts[name] = "\n".join(lines) + draw.choice(("\n", "\n", ""))
    log = read([(name, [text.encode()]) for name, text in texts.items()], SIGNS)
    return {"texts": [f"{name}: {text!r}" for name, text in texts.items()], **_shown(log, draw)}


def _shown(log: JobLog, draw: Draw) -> dict[str, object]:
    """Return what a log shows of its job, if some of its lines are known to speak of a failure."""
    failing = {(event.stream, event.line) for event in log.events if draw.odd(0.5)}
    ends, seen = rank_ends.rank_ends(log, failing), timeline.last_seen(log)
    asked = (outcome.lived_on, outcome.worked_before, outcome.is_near_the_end, outcome.ended_badly, outcome.alone)
    clocks, suspects = rank_ends.clocks(log), rank_ends.suspects(log, ends, [*ends.ranks][::2])
    return {
        "events": [*map(_event, log.events)],
        "judged": [f"{e.line} {[ask.__name__ for ask in asked if ask(log, e)]}" for e in log.events],
        "streams": [f"{s.rank}:{s.host}:{s.pid}:{s.step}:{s.step_line}:{s.over}:{s.served}" for s in log.streams],
        "paces": [f"{s.paces[-1:]} {[e.line for e in s.bars]} {s.finished and s.finished.line}" for s in log.streams],
        "ends": [f"{e.rank}:{e.host}:{e.said and e.said.line}:{e.complains}:{e.has_log}:{e.step}:{e.exit_text}:"
                 f"{e.alive}:{e.last and e.last.line}:{ends.wrote_on(e)}:{ends.came_later(e)}"
                 for e in ends.ranks.values()],
        "of all": f"{[e.rank for e in ends.silent]} {ends.first_out} {ends.unattributed} {ends.first_s} {ends.ahead_s}",
        "latecomer": ends.latecomer and ends.latecomer.rank, "clocks": clocks.in_words(), "size": log.world_size,
        "suspects": [f"{e.rank}:{e.host}:{e.last_line}:{e.silent_s}:{e.step}:{e.furthest_step}" for e in suspects],
        "seen": [f"{e.ranks} {e.sources} {e.step} {e.time_s}" for e in seen],
        "still": [*timeline.standing_still(log, seen), *timeline.stage(log, seen)],
        "ranks": [f"{e.rank}:{e.host}:{e.pid}:{e.last_collective}:{e.state}" for e in timeline.ranks(log, None)],
        "well": [e.line for e in outcome.ended_well(log, failing)], "attempts": [*outcome.earlier_attempts(log)],
        "aborted": outcome.aborted(log), "last resort": [e.line for e in outcome.last_resort(log)],
        "kept": [[e.line for e in outcome.last_attempt(log, failed=failed).events] for failed in (False, True)],
    }  # fmt: skip


KINDS: Mapping[Callable[[Draw], dict[str, object]], tuple[int, tuple[int, ...]]] = {
    _prefixes: (40, (50, 67, 78, 79, 115, 818, 2083, 2364)), _record: (30, (85, 2003)),
    _paragraph: (40, (40, 65, 94, 143, 164, 190, 198, 203, 345, 508, 932, 2058, 2115)),
    _log: (8, (8, 10, 16, 21, 23, 25, 46, 47, 52, 66, 67, 76, 120, 122, 124, 129, 183, 218, 299, 361, 593, 909, 1312,
              2000, 2047, 2115, 2168, 2267)),
}  # fmt: skip
"""How many of each kind are kept, and which more, as they decide what no other one decides."""


def rows() -> Rows:
    """Yield what is read in each."""
    for made, (first, more) in KINDS.items():
        for name in (f"{made.__name__} {number}" for number in (*range(first), *more)):
            yield name, made(Draw(name))
    for text in TIMES:
        yield f"time {text!r}", [str(time_at_start(text)), str(glog_at_start(text))]
    leap, seconds = 59 * 86400.0, (86400.0, 366 * 86400.0 - 1, 366 * 86400.0, 1.8e9, 1.709e9)
    yield "years", [[in_year(one, other) for other in seconds] for one in (*seconds, leap)]
    for raw in (b'{"log": "\xff"}', b"{", b"[1]", b"7", b'{"log": ' + b"[" * 9999, b'{"log": "' + b"x" * (1 << 20)):
        yield f"record {raw[:20]!r}", str(shipped_record(raw))
