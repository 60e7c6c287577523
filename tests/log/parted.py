"""What ranks have recorded of their calls, of which it is kept where they parted and who was waited for."""

from collections.abc import Iterator, Mapping
from typing import Any

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.logs.collectives import judge

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
    "one did not come": {0: "a b*", 1: "a b*", 2: "a"},
    "a receive without its send": {0: "a", 1: "a recv_1<-0*"},
    "a receive and its send": {0: "a send_0->1*", 1: "a recv_1<-0*"},
    "a pipeline": {0: "a", 1: "a recv_1<-0*", 2: "a recv_2<-1*", 3: "a recv_3<-2*"},
    "groups in different orders": {0: "1=0,1/x* 2=0,1/y?", 1: "2=0,1/y* 1=0,1/x?"},
    "groups that wait for each other": {0: "1=0,1/x*", 1: "2=0,1/y*"},
    "all finished": {0: "all_reduce:8 a", 1: "all_reduce:16 a"},
    "nothing was recorded": {0: "", 1: ""},
}
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
    ("two late ones of three", {0: "a@1 b*@2", 1: "a@3601 b*@3602"}, {"timeout_s": 60}),
)  # fmt: skip


def rows() -> Iterator[tuple[str, object]]:
    """Yield all cases with what is judged of them."""
    dropped = (*recorded({0: "a b c*"}, world=2, first=100).dumps, *recorded({1: "b c*"}, world=2, first=101).dumps)
    records = {name: recorded(texts) for name, texts in RECORDS.items()}
    records |= {name: recorded(texts, **how) for name, texts, how in OTHERS}
    for name, each in {**records, "recorders that dropped their oldest": FlightRecords(dropped)}.items():
        yield name, {type(found).__name__: found for found in judge(each)} or ["nothing"]
