"""What connections and GPUs show of a running job: between which ranks nothing arrives, and whose GPU failed."""

from collections.abc import Mapping
from typing import Any

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.job.gpus import LiveGpu
from ncclprobe.facts.job.process_state import Child, LiveRank
from ncclprobe.facts.job.ranks import Connection, JobState
from ncclprobe.facts.kernel_log import Event
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row
from tests.localise.test_job import IDLE, STOPPED, WAIT_OF_51, classes, later, looked

SENDS = Connection(100, "10.77.1.1:40", "10.77.1.3:50", unacknowledged_bytes=9000, retransmits=6, heard_s=12.0)
RECEIVES = Connection(102, "10.77.1.3:50", "10.77.1.1:40")
INSIDE = dict.fromkeys(range(3), "all_reduce@980 all_reduce*@985")


def inside(*wires: tuple[Connection, Connection], texts: Mapping[int, str] = INSIDE) -> JobState:
    """Return how three ranks stand that are in one call, of the first and second look at each connection."""
    states = dict.fromkeys(range(3), (IDLE, later(IDLE)))
    first, second = (tuple(both[at] for both in wires) for at in (0, 1))
    return looked(states, recorded(texts), wires=(first, second))


def test_the_two_ranks_between_which_nothing_arrives_are_named_and_the_nic() -> None:
    found = inside((SENDS, SENDS), (RECEIVES, RECEIVES))
    assert (found.answer.word, classes(found)) == ("STUCK", {"stuck inside": (0, 2), "waiting": (1,)})
    wanted = "rank 0 sends to rank 2 over eth1 (10.77.1.1:40 to 10.77.1.3:50): 8.789 KiB wait, nothing was"
    assert wanted in found.classes[0].doing


@each_row(
    ("changes", "word"),
    [
        ({"acknowledged_bytes": 1}, "WORKING"),
        ({"unacknowledged_bytes": 0}, "CANNOT TELL"),
        ({"retransmits": 0}, "CANNOT TELL"),
        ({"peer": "10.9.9.9:443"}, "CANNOT TELL"),
    ],
)
def test_a_connection_that_may_go_on_or_leads_to_no_rank_accuses_none(changes: dict[str, Any], word: str) -> None:
    after = replace(SENDS, **changes)
    found = inside((replace(SENDS, peer=after.peer), after), (RECEIVES, RECEIVES))
    assert (found.answer.word, set(classes(found))) == (word, {word.lower()})


def test_the_peer_of_the_socket_that_a_rank_or_its_worker_reads_is_named() -> None:
    reads = replace(IDLE, call="recvfrom", file="socket:[7]")
    worker = Child("S", 3.0, "", "read", "socket:[8]", pipes=("pipe:[9]",), pid=4242, name="pt_data_worker")
    polls = replace(IDLE, call="poll", pipes=("pipe:[9]",), children=(worker,))
    peers = tuple(Connection(102, "10.0.0.1:9", f"10.9.9.{n}:443", heard_s=63.0, inode=n) for n in (7, 8))
    for state, call, address in ((reads, "recvfrom", "10.9.9.7:443"), (polls, "read", "10.9.9.8:443")):
        states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (state, later(state))}
        found = looked(states, recorded(WAIT_OF_51, backend="gloo"), wires=((), peers))
        wanted = f"is blocked reading data that does not arrive ({call} of a connection to {address}, silent for 63 s)"
        assert wanted in found.classes[0].doing


def test_a_rank_that_waits_for_an_answer_of_the_jobs_store_waits_for_a_key() -> None:
    polls = replace(IDLE, call="poll", file="socket:[7]")
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (polls, later(polls))}
    rows = [
        ("10.9.9.7:29500", "is waiting for a key (poll of the job's store at 10.9.9.7:29500, silent for 63 s)"),
        ("10.9.9.7:443", "is waiting for input (poll of a connection to 10.9.9.7:443, silent for 63 s)"),
    ]
    for peer, wanted in rows:
        peers = (Connection(102, "10.0.0.1:9", peer, heard_s=63.0, inode=7),)
        found = looked(states, recorded(WAIT_OF_51, backend="gloo"), wires=((), peers), port=29500)
        assert wanted in found.classes[0].doing


@each_row(
    ("heard_s", "state", "wanted"),
    [
        (12.0, IDLE, {"stuck inside": (0, 2), "cannot tell": (1,)}),
        (2.0, IDLE, {"cannot tell": (0, 2, 1)}),
        (12.0, STOPPED, {"stuck outside": (2,), "cannot tell": (0, 1)}),
    ],
)
def test_ranks_between_which_nothing_arrives_are_named_without_records(
    heard_s: float, state: LiveRank, wanted: dict[str, tuple[int, ...]]
) -> None:
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (state, later(state))}
    wires = (replace(SENDS, heard_s=heard_s), RECEIVES)
    found = looked(states, wires=(wires, wires))
    ranks: dict[str, tuple[int, ...]] = {}
    for each in found.classes:
        ranks[each.name] = (*ranks.get(each.name, ()), *each.ranks)
    assert ranks == wanted
    assert any("rank 0 sends to rank 2 over eth1" in each.doing for each in found.classes) is (state is IDLE)


@each_row(
    ("first", "still_s", "name"),
    [("D", 12.0, "stuck outside"), ("D", 2.0, "cannot tell"), ("D", None, "cannot tell"), ("S", 12.0, "cannot tell")],
)
def test_a_rank_long_in_uninterruptible_sleep_is_named_without_records(
    first: str, still_s: float | None, name: str
) -> None:
    state = replace(IDLE, state="D", wchan="folio_wait_bit_common", call="read", file="/data/shard", still_s=still_s)
    states = {0: (IDLE, later(IDLE)), 1: (replace(state, state=first), later(state))}
    found = looked(states)
    (row,) = (each for each in found.classes if 1 in each.ranks)
    assert row.name == name
    assert "is in uninterruptible sleep (folio_wait_bit_common, /data/shard)" in row.doing


WELL = LiveGpu(0, "00000000:5E:00.0", (100,), 100, 1980, 1980, 310_000, (), 64)
SLOWED = ("hw-thermal-slowdown",)
XID = Event(50.0, "xid", "0000:5e:00", "79")


@each_row(
    ("first", "last", "xids", "words"),
    [
        (WELL, WELL, (XID,), "its GPU0 has had Xid 79"),
        (WELL, WELL, (replace(XID, code="31"),), ""),
        (WELL, WELL, (replace(XID, at_s=0.001),), ""),
        (WELL, WELL, (replace(XID, device="0000:5f:00"),), ""),
        (WELL, WELL, (replace(XID, kind="lost", code=""),), "its GPU0 fell off the bus"),
        (WELL, replace(WELL, pci=Absent("NVML: GPU is lost"), pids=Absent("NVML: GPU is lost")), (),
         "its GPU0 does not answer (NVML: GPU is lost)"),
        (WELL, replace(WELL, pci=Absent("NVML: Insufficient Permissions")), (), ""),
        (replace(WELL, reasons=SLOWED), replace(WELL, reasons=SLOWED, clock_MHz=345), (),
         "its GPU0 is held at 345 of 1980 MHz (hw-thermal-slowdown)"),
        (WELL, replace(WELL, reasons=SLOWED, clock_MHz=345), (), ""),
        (replace(WELL, reasons=("gpu-idle",)), replace(WELL, reasons=("gpu-idle",), clock_MHz=345), (), ""),
        (WELL, WELL, Absent("kernel.dmesg_restrict is 1"), ""),
    ],
)  # fmt: skip
def test_a_rank_whose_gpu_failed_holds_up_the_call_in_which_all_are(
    first: LiveGpu, last: LiveGpu, xids: Any, words: str
) -> None:
    texts = dict.fromkeys(range(2), "all_reduce@980 all_reduce*@985")
    of_other = replace(WELL, index=1, pci="00000000:5D:00.0", pids=(101,))
    found = looked(
        dict.fromkeys(range(2), (IDLE, later(IDLE))), recorded(texts), gpus=((first, of_other), (last, of_other), xids)
    )
    if not words:
        assert set(classes(found)) == {"cannot tell"}
        return
    assert classes(found) == {"stuck inside": (0,), "waiting": (1,)}
    assert found.classes[0].doing.endswith(f"; {words}")
    assert found.classes[1].doing.endswith("for rank 0")


LOST = Absent("NVML: GPU is lost")
ON_FIRST = replace(WELL, pids=(100, 101))
"""Both ranks have a context on GPU 0, as where a program does not say which it means."""
ON_SECOND = replace(WELL, index=1, pci="00000000:5D:00.0", pids=(101,))


@each_row(
    ("gpus", "xids", "accused"),
    [
        ((ON_FIRST, ON_SECOND), (XID,), {"stuck inside": (0,), "waiting": (1,)}),
        ((ON_FIRST, ON_SECOND), (replace(XID, device="0000:5d:00"),), {"stuck inside": (1,), "waiting": (0,)}),
        ((ON_FIRST,), (XID,), {"stuck inside": (0, 1)}),
        ((ON_FIRST, replace(ON_SECOND, pci=LOST, pids=LOST)), (), {"stuck inside": (1,), "waiting": (0,)}),
        ((replace(ON_FIRST, clock_MHz=0, most_MHz=0, reasons=SLOWED), ON_SECOND), (), {"cannot tell": (0, 1)}),
    ],
    ids=["Xid of the first", "Xid of the second", "two ranks on one", "the second lost meanwhile", "no clocks"],
)
def test_a_rank_has_the_gpu_that_the_fewest_ranks_have_at_either_look(
    gpus: tuple[LiveGpu, ...], xids: Any, accused: Any
) -> None:
    texts = dict.fromkeys(range(2), "all_reduce@980 all_reduce*@985")
    first = tuple(replace(gpu, reasons=SLOWED) for gpu in (ON_FIRST, ON_SECOND)[: len(gpus)])
    found = looked(dict.fromkeys(range(2), (IDLE, later(IDLE))), recorded(texts), gpus=(first, gpus, xids))
    assert classes(found) == accused


def test_what_a_gpu_does_is_evidence_of_its_rank() -> None:
    gpus = (WELL,), (replace(WELL, nvlink_KiB=1088),), ()
    found = looked({0: (IDLE, later(IDLE))}, gpus=gpus)
    texts = [each.text for each in found.classes[0].evidence]
    assert "GPU0: busy 100 % of the time, 1980 MHz of 1980, 310 W, 1 MiB over NVLink between the two samples" in texts
    assert not any("GPU0" in each.text for each in looked({1: (IDLE, later(IDLE))}, gpus=gpus).classes[0].evidence)


def test_a_call_over_whose_connections_much_passes_is_slow_and_not_stuck() -> None:
    texts = dict.fromkeys(range(3), "all_reduce@900 all_reduce*@905")
    passes = replace(SENDS, retransmits=0, acknowledged_bytes=500_000)
    found = inside((SENDS, passes), (RECEIVES, RECEIVES), texts=texts)
    assert (found.answer.word, set(classes(found))) == ("SLOW", {"slow, not stuck"})
    assert "rank 0 sends to rank 2 over eth1" in found.classes[0].doing
    assert inside((SENDS, replace(passes, acknowledged_bytes=500)), texts=texts).answer.word == "STUCK"


def test_a_rank_that_was_not_looked_at_is_said_to_be_silent() -> None:
    texts = dict.fromkeys(range(2), "all_reduce@970 all_reduce*@971")
    records = recorded(texts, world=3, backend="gloo")
    found = looked(dict.fromkeys(range(2), (IDLE, later(IDLE))), records, world=3, wires=((SENDS,), (SENDS,)))
    assert found.classes[0].doing.startswith("was not examined: attach on its node too; rank 0 sends to 10.77.1.3:50")
