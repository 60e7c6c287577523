"""What ranks have recorded of their calls, and RAS of them: where they parted, and what each check finds."""

from collections.abc import Iterator, Mapping
from typing import Any

from ncclprobe.checks.log.flight import NO_LOG, recorded
from ncclprobe.checks.log.known import log_of
from ncclprobe.checks.log.silence import BEHIND, DEAD
from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.facts.files.ras import RasStatus, read_answer
from ncclprobe.logs.collectives import judge
from ncclprobe.logs.job_log import JobLog
from ncclprobe.model.registry import Check, discover
from tests.log.single import in_words

FAILED = log_of("Something failed")

RECORDS: Mapping[str, Mapping[int, str]] = {
    "the few that differ": {0: "a all_reduce* b?", 1: "a all_reduce* b?", 2: "a broadcast* c?"},
    "a tie": {0: "all_reduce*", 1: "broadcast*"},
    "another size": {0: "all_reduce:8*", 1: "all_reduce:8*", 2: "all_reduce:16*"},
    "another type": {0: "all_reduce:8:Half*", 1: "all_reduce:8:Half*", 2: "all_reduce:8:Float*"},
    "another order": {**dict.fromkeys((0, 1), "all_reduce* broadcast?"), 2: "broadcast* all_reduce?"},
    "one skipped": {**dict.fromkeys((0, 1), "all_reduce* broadcast? gather?"), 2: "broadcast* gather?"},
    "one additional": {**dict.fromkeys((0, 1), "all_reduce* broadcast?"), 2: "barrier* all_reduce? broadcast?"},
    "sizes that may differ": {0: "all_to_all:8 a", 1: "all_to_all:16 a"},
    "sizes of an unknown operation": {0: "some_new_operation:8", 1: "some_new_operation:16"},
    "one did not come": {0: "a b*", 1: "a b*", 2: "a"}, "a receive without its send": {0: "a", 1: "a recv_1<-0*"},
    "a receive and its send": {0: "a send_0->1*", 1: "a recv_1<-0*"},
    "a pipeline": {0: "a", 1: "a recv_1<-0*", 2: "a recv_2<-1*", 3: "a recv_3<-2*"},
    "groups in different orders": {0: "1=0,1/x* 2=0,1/y?", 1: "2=0,1/y* 1=0,1/x?"},
    "groups that wait for each other": {0: "1=0,1/x*", 1: "2=0,1/y*"},
    "all finished": {0: "all_reduce:8 a", 1: "all_reduce:16 a"}, "nothing was recorded": {0: "", 1: ""},
    "five that differ": {**dict.fromkeys(range(6), "a all_reduce*"), **dict.fromkeys(range(6, 11), "a broadcast*")},
    "many did not come": {**dict.fromkeys(range(6), "a b*"), **dict.fromkeys(range(6, 12), "a")},
    "a tie of two and two": {0: "all_reduce*", 1: "broadcast*", 2: "all_reduce*", 3: "broadcast*"},
    "five groups wait": {n: f"{n}={n},{(n + 1) % 5}/x{n}*" for n in range(5)},
    "absent ones went elsewhere": {0: "a b*", 1: "a b*", 2: "a 1=2,9/c*", 3: "a 2=3,8/d*"},
    "one has nothing": {0: "a*", 1: "a*", 2: ""}}  # fmt: skip
OTHERS: tuple[tuple[str, Mapping[int, str], Mapping[str, Any]], ...] = (
    ("one never called", {0: "1=0,1/a*", 1: "0/b", 2: "0/b"}, {"world": 3}),
    ("ranks without a dump", {0: "a*", 1: "a*", 5: "a?"}, {"world": 8}),
    ("gloo: one is behind", {0: "a b", 1: "a b", 2: "a"}, {"backend": "gloo"}),
    ("gloo: none is", {0: "a b", 1: "a b"}, {"backend": "gloo"}),
    ("gloo: one left no dump", {0: "a b", 1: "a b"}, {"world": 3, "backend": "gloo"}),
    ("one waits in another group", {0: "1=0,1/x*", 1: "2=1,3/y*", 2: "0/b", 3: "0/b 2=1,3/y y"}, {"world": 4}),
    ("one waits for another call", {0: "1=0,1/x*", 1: "2=1,3/y*", 3: "0/b 2=1,3/z"}, {"world": 4}),
    ("one waits for who is not there", {0: "1=0,1/x*", 1: "2=1,3/y*", 3: "0/b"}, {"world": 4}),
    *((f"late: {s}", {0: "a@1 b!@2", 1: f"a@3601 b*@{s}", 2: "a@1 b!@2"}, {"timeout_s": 60}) for s in (3661, 3663)),
    ("two late ones of three", {0: "a@1 b*@2", 1: "a@3601 b*@3602"}, {"timeout_s": 60}))  # fmt: skip


HEAD = BEHIND.partition("Warnings")[0]


def _counts(operation: str, *said: tuple[int, int, str], comm: str = "27a0") -> str:
    """Return what RAS says of a communicator: how many ranks launched how many operations, and which ranks these "
    "are."""
    lines = [f"#0-0 ({comm}) MISMATCH", f"  Communicator ranks have different {operation} operation counts"]
    for count, value, ranks in said:
        alone = count == 1
        lines += [f"  {count} ranks have launched up to operation {value}"] * (not alone)
        did = f" has launched up to operation {value}" if alone else ""
        lines += [f"  Rank {rank}{did} -- GPU {int(rank) % 8} managed by process 10{rank} on node n{int(rank) // 8}"
                  for rank in ranks.split()]  # fmt: skip
    return "\n".join([*lines, ""])


GONE = "GPU 5 managed by process 7 on node n2"
RAS: Mapping[str, str] = {
    "one behind": _counts("AllReduce", (31, 9, ""), (1, 8, "21")),
    "two behind": _counts("AllReduce", (30, 9, ""), (1, 8, "21"), (1, 7, "3")),
    "ten behind": _counts("collective", (30, 9, ""), (10, 8, "11 3 4 5 6 7 8 9 10 2")),
    "two ahead": _counts("AllReduce", (30, 9, ""), (2, 10, "21 3")),
    "one ahead in any": _counts("collective", (30, 9, ""), (1, 10, "21")),
    "half": _counts("AllReduce", (2, 9, "0 1"), (2, 8, "2 3")),
    "ahead and behind": _counts("AllReduce", (30, 9, ""), (2, 8, "21 3"))
    + _counts("AllGather", (30, 5, ""), (2, 6, "3 21")),
    "ahead and behind, each another": _counts("AllReduce", (30, 9, ""), (1, 8, "21"))
    + _counts("AllGather", (30, 5, ""), (1, 6, "3"), comm="88"),
    "dead, no process": "  2 job processes are considered dead (unreachable via the RAS network)\n",
    "dead, and its rank": DEAD.partition(HEAD)[2],
    "dead ones": "  2 job processes are considered dead\n"
    + "".join(f"  Process {n} on node n{n % 3} managing GPU {n}\n" for n in range(6)),
    "dead, its rank is missing": "  1 job process is considered dead\n  Process 7 on node n2 managing GPU 5\n#0-0 "
    "(88) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: "
    "21\n",
    "missing": f"#0-0 (88) INCOMPLETE\n  Missing communicator data from 2 ranks\n  Rank 21 -- {GONE}\n  Rank 3 -- "
    f"{GONE}\n",
    "missing, no process": "#0-0 (88) INCOMPLETE\n  Missing communicator data from 2 ranks\n",
    "missing ranks": "#0-0 (88) INCOMPLETE\n  Missing communicator data from 2 ranks\n  The missing ranks: 4-5, 9\n",
    "unresponsive": "[2026-01-02 03:04:05] PEER_UNRESPONSIVE: Process 7 on node n2 managing GPU 5\n",
    "errors": "#0-0 (88) ERROR\n  2 ranks reported Remote process error\n",
    "errors of ranks": f"#0-0 (88) ERROR\n  3 ranks reported System error\n  Rank 4 -- {GONE}\n  Rank 2 -- {GONE}\n",
}


def _found(**facts: object) -> Iterator[str]:
    """Yield what each check on logs finds in facts of these types."""
    known = {type(each): each for each in facts.values()}
    for rule in discover("ncclprobe.checks.log", Check):
        needs = [need.fact for need in rule.needs]
        if needs[0] in known and JobLog not in needs[:1]:
            yield from (f"{rule.key}: {in_words(each)}"
                        for each in rule.run(*(known.get(need, facts.get("log")) for need in needs)))  # fmt: skip


def rows() -> Iterator[tuple[str, object]]:
    """Yield all cases with what is judged of them."""
    dropped = (*recorded({0: "a b c*"}, world=2, first=100).dumps, *recorded({1: "b c*"}, world=2, first=101).dumps)
    records = {name: recorded(texts) for name, texts in RECORDS.items()}
    records |= {name: recorded(texts, **how) for name, texts, how in OTHERS}
    for name, each in {**records, "recorders that dropped their oldest": FlightRecords(dropped)}.items():
        yield name, {type(found).__name__: found for found in judge(each)} or ["nothing"]
        for kind, log in (("no log", NO_LOG), ("a log", JobLog((), ())), ("a failure", FAILED)):
            yield f"{name}, {kind}", [said.split() for said in _found(records=each, log=log)]
    answers = {name: read_answer("ras.txt", f"{HEAD}{text}".encode()) for name, text in RAS.items()}
    for name, answer in answers.items():
        yield f"RAS, {name}", [said.split() for said in _found(ras=RasStatus((answer,)))]
    two = RasStatus((answers["one behind"], answers["two ahead"]))
    yield "RAS, twice", [said.split() for said in _found(ras=two)]
