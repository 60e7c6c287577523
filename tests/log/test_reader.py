"""Logs of every form become events: who wrote them, when, in which line. Nothing that a log holds stops the reader."""

import gzip
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.host.job_files import Blocks, JobFile, named
from ncclprobe.logs.job_log import JobLog, LogEvent, SignIndex
from ncclprobe.logs.prefix import cleaned, habit_of
from ncclprobe.logs.reader import LEAST, MOST_ALIKE, Chunks, Reader, read
from ncclprobe.logs.sieve import Sieve, Whole
from tests.each_row import each_row

WARN = "node1:12:13 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found"
SAID = "Bootstrap : no socket interface found"
NOON = 1795341600.0  # 2026-11-22 10:00:00 UTC


def log(**texts: str | bytes) -> JobLog:
    encoded = {name: text.encode() if isinstance(text, str) else text for name, text in texts.items()}
    return read(((name, [text]) for name, text in encoded.items()), ("no socket interface",))


def only(text: str | bytes) -> LogEvent:
    (event,) = log(a=text).events
    return event


@each_row(
    ("prefix", "rank", "time_s"),
    [
        ("", None, None),
        ("[rank3]:", 3, None),
        ("[default3]:[rank11]: ", 11, None),
        ("[1,3]<stderr>:", 3, None),
        ("[prterun-login-12@1,3]<stderr>: ", 3, None),
        ("Sun Nov 22 10:00:00 2026[1,3]<stdout>:", 3, NOON),
        ("[2026-11-22 10:00:00] ", None, NOON),
        ("2026-11-22T10:00:00.5Z stderr F ", None, NOON + 0.5),
        ("2026-11-22T12:00:00.5+02:00 ", None, NOON + 0.5),
        ("2026-11-22 10:00:00,250 - ", None, NOON + 0.25),
        ("11/22/2026 10:00:00 - ", None, NOON),
        ("[pod/job-worker-3/pytorch] 2026-11-22T10:00:00Z ", None, NOON),
        ("(RayTrainWorker pid=77, ip=10.0.0.3) [rank3]: ", 3, None),
        ("1795341600.25 ", None, NOON + 0.25),
        ("\x1b[31m[rank3]: \x1b[0m", 3, None),
        ("50%|#####     | 1/2\r[rank3]: ", 3, None),
        ("\ufeff", None, None),
        ("\0\0\0", None, None),
        ("    [rank3]: ", 3, None),
        ("> [rank3]: ", 3, None),
        ("[default2]:", 2, None),
        ("2026-11-22T10:00:00.5Z: [1,3]<stdout>:", 3, NOON + 0.5),
        ("(Worker_TP3 pid=77) ", 3, None),
        ("(VllmWorker rank=3 pid=77) ", 3, None),
        ("(PolicyWorker[rank=3] pid=77, ip=10.0.0.3) ", 3, None),
        ("[RANK 3] ", 3, None),
        ("(worker2, rank=3, pid=2685, ip=10.0.0.3) ", 3, None),
        ("(head, rank=3, pid=77) ", 3, None),
        ("(Worker_TP3 pid=77) WARNING 11-22 10:00:00 [core.py:843] ", 3, 28116000.0),
        ("[NeMo W 2026-11-22 10:00:00 exp_manager:423] ", None, NOON),
        ("[TensorRT-LLM][INFO] ", None, None),
        ("LAUNCH ERROR 2026-11-22 10:00:00,000 ", None, NOON),
        ("2026-11-22,10:00:00 | ", None, NOON),
        ("[3]<stderr>:", 3, None),
        ("  | [rank3]: ", 3, None),
        ("(raylet, ip=10.0.0.3) ", None, None),
        ("(pid=77) ", None, None),
        ("2026-11-22 10:00:00,250\t", None, NOON + 0.25),
    ],
)
def test_what_stands_before_the_words_says_who_and_when(prefix: str, rank: int | None, time_s: float | None) -> None:
    event = only(prefix + WARN)
    assert (event.text, event.level, event.place) == (SAID, "WARN", "bootstrap.cc:45")
    assert (event.rank, event.host, event.pid, event.time_s) == (rank, "node1", 12, time_s)


@each_row(
    ("line", "rank", "level", "place"),
    [
        ("[rank3]:[E1122 10:00:00.5 ProcessGroupNCCL.cpp:607] [Rank 3] error", 3, "ERROR", "ProcessGroupNCCL.cpp:607"),
        ("[E ProcessGroupNCCL.cpp:828] [Rank 3] an error", 3, "ERROR", "ProcessGroupNCCL.cpp:828"),
        ("W1122 10:00:00.123000 139 torch/run.py:868] an error", None, "WARN", "torch/run.py:868"),
        ("2026-11-22 10:00:00,123 - ERROR - an error", None, "ERROR", ""),
        ("ERROR:torch.distributed.elastic:an error", None, "ERROR", ""),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 5] an error", 5, "", ""),
        ("[rank: 2] an error", 2, "", ""),
        ("n1:7:9 [0] include/socket.h:360 WARN an error", None, "WARN", "include/socket.h:360"),
        ("libfabric:77:1795341600::efa:cq:efa_rdm_cq_poll():737<warn> an error", None, "WARN", "libfabric"),
        ("[n1:77] Signal: an error", None, "", ""),
        ("[s6]: an error", None, "", ""),
    ],
)
def test_torch_says_rank_and_level_in_several_ways(line: str, rank: int | None, level: str, place: str) -> None:
    event = only(line)
    assert (event.rank, event.level, event.place) == (rank, level, place)


def test_a_time_without_a_year_is_of_the_year_that_others_name() -> None:
    late = log(a=f"[2026-11-22 10:00:00] {WARN}\n[E1122 10:00:01.5 x.cpp:1] an error\n").events[1]
    assert late.time_s == NOON + 1.5


@each_row(
    "record",
    [
        {"log": WARN + "\n", "stream": "stderr", "time": "2026-11-22T10:00:00Z"},
        {"MESSAGE": WARN, "_HOSTNAME": "gpu17", "__REALTIME_TIMESTAMP": "1795341600000000"},
        {"textPayload": WARN, "timestamp": "2026-11-22T10:00:00Z", "labels": {"node": "gpu17"}},
        {"message": WARN, "timestamp": 1795341600000, "kubernetes": {"node_name": "gpu17"}},
        {"jsonPayload": {"message": WARN}, "timestamp": "2026-11-22T10:00:00.0Z"},
    ],
)
def test_the_line_in_a_shippers_json_is_read(record: dict[str, object]) -> None:
    event = only(json.dumps(record))
    assert (event.text, event.host, event.time_s) == (SAID, "node1", NOON)


def test_numbers_and_hosts_before_every_line_are_prefixes_and_before_one_are_not() -> None:
    srun = "".join(f"{n % 8}: step {n}\n" for n in range(40))
    assert [e.rank for e in log(a=srun + "3: an error\n").events] == [3]
    assert [e.rank for e in log(a="loss 1\n" * 9 + "3: an error\n").events] == [None]
    pdsh = "".join(f"gpu{n % 4}: step {n}\n" for n in range(40))
    assert [e.host for e in log(a=pdsh + "gpu3: an error\n").events] == ["gpu3"]
    assert not habit_of(b"a: 1\nb: 2\nc: 3\nd: 4\n").hosts
    compose = "".join(f"worker-{n % 4}  | step {n}\n" for n in range(40))
    assert [e.host for e in log(a=compose + "worker-3  | an error\n").events] == ["worker-3"]
    assert [e.host for e in log(a="loss | 3.1\n" + "step 7\n" * 9 + "loss | an error\n").events] == [""]


def test_half_lines_of_two_writers_are_two_lines() -> None:
    mixed = "n1:1:1 [0] NCCL INFO Channel 00 n2:5:5 [1] NCCL WARN no socket interface"
    said = [(each.host, each.text) for each in cleaned(mixed.encode())]
    assert said == [("n1", "Channel 00"), ("n2", "no socket interface")]
    bar = "  0%|          | 0/100 [00:00<?, ?it/s, loss=3.1][rank1]: torch.OutOfMemoryError: CUDA out of memory."
    assert [each.rank for each in cleaned(bar.encode())] == [None, 1]
    (whole,) = cleaned(b"  0%|          | 0/100 [00:00<?, ?it/s]")
    assert whole.text.endswith("?it/s]")


def test_a_rank_is_known_by_ncclss_own_lines_wherever_they_stand() -> None:
    init = "n1:9:9 [0] NCCL INFO comm 0x1 rank 5 nranks 16 cudaDev 0 busId 7000 commId 0x2 - Init START"
    found = log(a=f"n1:9:10 [0] x.cc:1 NCCL WARN no socket interface\n{init}\n")
    assert [event.rank for event in found.events] == [5, 5]
    assert (found.world_size, found.ranks[5].init_started, found.ranks[5].init_complete) == (16, 1, 0)


def test_a_rank_is_its_rank_in_the_largest_communicator() -> None:
    small = "n1:9:9 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 7000 commId 0x2 - Init START\n"
    large = "n1:9:9 [0] NCCL INFO comm 0x3 rank 5 nranks 16 cudaDev 0 busId 7000 commId 0x4 - Init START\n"
    assert {event.rank for event in log(a=small + large).events} == {5}


@each_row(
    ("name", "rank"),
    [
        ("rank_3.log", 3),
        ("logs/rank12/out", 12),
        ("none_x1/attempt_0/3/stderr.log", 3),
        ("crank3", None),
        ("n3", None),
    ],
)
def test_the_name_of_a_file_may_say_the_rank(name: str, rank: int | None) -> None:
    assert read([(name, [b"an error"])]).events[0].rank == rank


TRACEBACK = """\
[rank1]: Traceback (most recent call last):
[rank0]: step 7 error rate 0.1
[rank1]:   File "/job/train.py", line 12, in main
[rank1]:     loss.backward()
[rank1]: ValueError: no data
"""


def test_a_traceback_is_its_exception_at_the_frame_that_raised_it() -> None:
    found = [event for event in log(a=TRACEBACK).events if event.level == "EXCEPTION"]
    assert [(e.text, e.place, e.line, e.rank) for e in found] == [
        ("ValueError: no data", "/job/train.py:12 main", 5, 1)
    ]


@each_row(
    ("text", "told"),
    [
        ("ValueError: no data\n", "ValueError: no data"),
        ("  what():  no data\n", "no data"),
        ("ValueError: no data\n" + "loss\n" * 60, None),
        ("ValueError: no data\nTraining finished\n", None),
        ("print of ValueError: no data\n", None),
    ],
)
def test_an_exception_without_its_traceback_is_one_near_the_end(text: str, told: str | None) -> None:
    assert [event.text for event in log(a=text).events if event.level == "EXCEPTION"] == ([told] if told else [])


@each_row(
    "text",
    [
        "Missing ranks:\n0: [grad/a]\n3: [grad/a]\n5 others",
        "XlaRuntimeError: Barrier failed. Timed out task names:\n/job:w/replica:0/task:0\n/job:w/replica:0/task:3\n\n",
        f"{TRACEBACK.splitlines()[0]}\n[rank1]: XlaError: Timed out task names:\n[rank1]: 0\n[rank1]: 3\n",
    ],
)
def test_ranks_that_are_listed_beneath_a_line_stand_in_one(text: str) -> None:
    assert [event.text[-5:] for event in log(a=text).events if event.text[-1].isdigit()] == [" 0, 3"]


SUMMARY = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_10:00:01
  host      : gpu17
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 78)
  error_file: <N/A>
  traceback : Traceback (most recent call last):
    File "/job/train.py", line 12, in main
      raise ValueError("no data")
  ValueError: no data
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_10:00:00
  host      : gpu17
  rank      : 2 (local_rank: 0)
  exitcode  : -9 (pid: 77)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 77
============================================================
"""


def test_torchruns_summary_says_who_ended_how() -> None:
    found = {e.level: e for e in log(a=SUMMARY).events if e.level in ("ROOT CAUSE", "FAILURE")}
    first, other = found["ROOT CAUSE"], found["FAILURE"]
    assert (first.rank, first.host, first.pid, first.time_s) == (2, "gpu17", 77, NOON)
    assert first.text == "exitcode: -9 (SIGKILL), Signal 9 (SIGKILL) received by PID 77"
    assert (other.rank, other.text, other.line) == (3, "exitcode: 1, ValueError: no data", 9)


def test_lines_alike_are_kept_a_few_times_and_those_searched_for_more_often() -> None:
    many = "".join(f"an error number {n}\n" for n in range(1000)) + f"{WARN}\n" * 100
    found = log(a=many)
    assert len(found.events) == MOST_ALIKE + 100
    assert found.ranks == {}


def test_a_line_of_ten_megabytes_is_read_where_it_says_something() -> None:
    found = log(a=b"x" * (10 << 20) + b" no socket interface \n" + WARN.encode())
    assert [("no socket interface" in e.text, len(e.text) <= 4096, e.line) for e in found.events] == [
        (True, True, 1),
        (True, True, 2),
    ]


def test_line_numbers_hold_across_blocks() -> None:
    filler = b"step 1 loss 2.0\n" * (3 * LEAST // 16)
    (event,) = log(a=filler + WARN.encode() + b"\n" + filler).events
    assert event.line == 3 * LEAST // 16 + 1


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_in_any_blocks_are_read(blocks: list[bytes]) -> None:
    found = read([("a", blocks)], ("no socket interface",))
    whole = read([("a", [b"".join(blocks)])], ("no socket interface",))
    assert found.events == whole.events
    assert found.streams[0].nlines == b"".join(blocks).count(b"\n") + (not b"".join(blocks).endswith(b"\n")) * bool(
        b"".join(blocks)
    )


LINES = st.sampled_from(
    [WARN.encode(), b"loss 1", TRACEBACK.encode(), SUMMARY.encode(), b"[rank3]:", b"\xff\xfe", b"{"]
)


@given(st.lists(LINES, max_size=6), st.data())
def test_a_log_with_bytes_changed_or_cut_is_read_on(lines: list[bytes], data: st.DataObject) -> None:
    text = bytearray(b"\n".join(lines))
    for _ in range(data.draw(st.integers(0, 4)) if text else 0):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(text[: data.draw(st.integers(0, len(text)))])
    for event in read([("a", [cut])], ("no socket interface",)).events:
        assert event.line >= 1
        assert len(event.text) <= 4096
        assert event.rank is None or event.rank >= 0


@given(
    st.text(alphabet=st.sampled_from("abexW<\"' .:no"), max_size=80),
    st.lists(st.text(alphabet="abexWno <", min_size=1), max_size=5),
)
def test_a_sieve_finds_every_line_that_holds_a_text(block: str, texts: list[str]) -> None:
    data = block.replace(".", "\n").encode()
    sieve = Sieve(texts)
    found = {data[begin:end] for begin, end, _ in sieve.lines(data)}
    for line in data.split(b"\n"):
        holds = any(text.encode() in line for text in texts)
        assert Whole(texts).holds(line) == holds
        assert line in found or not holds


def test_readers_of_the_same_signs_share_their_sieve() -> None:
    """To make one takes longer than to read a megabyte."""
    assert Reader(["x is gone"]).sieve is Reader(["x is gone"]).sieve is not Reader(["y is gone"]).sieve


def test_chunks_hold_every_byte_once() -> None:
    data = b"".join(b"%d\n" % n for n in range(900_000))
    found = Chunks(data[at : at + 100_000] for at in range(0, len(data), 100_000))
    made = list(found)
    assert b"".join(chunk.data[: chunk.own] for chunk in made) == data
    assert len(made) > 1
    assert (found.nlines, found.nbytes, data.endswith(found.tail)) == (900_000, len(data), True)
    assert len(found.tail) > 200_000


def test_files_folders_and_patterns_are_found_once_and_rotated_logs_in_their_order(tmp_path: Path) -> None:
    for name in ("rank10.log", "rank2.log", "job.log", "job.log.1", "job.log.2.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"x") if name.endswith("gz") else b"x")
    found = [Path(file.name).name for file in named([str(tmp_path), str(tmp_path / "*.log")])]
    assert found == ["job.log.2.gz", "job.log.1", "job.log", "rank2.log", "rank10.log"]


def test_a_compressed_log_that_ends_early_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress(WARN.encode() * 4000)
    path = tmp_path / "a.log.gz"
    path.write_bytes(whole[: len(whole) // 2])
    blocks = Blocks(JobFile(str(path)))
    list(blocks)
    assert "ends early" in blocks.cut


def test_containers_that_share_host_and_process_number_keep_their_ranks() -> None:
    init = "n1:1:9 [0] NCCL INFO comm 0x1 rank {} nranks 2 cudaDev 0 busId 7000 commId 0x2 - Init START\n"
    found = log(a=init.format(0) + f"n1:1:9 {WARN[14:]}\n", b=init.format(1) + f"n1:1:9 {WARN[14:]}\n")
    assert [event.rank for event in found.events] == [0, 0, 1, 1]


@given(st.lists(st.text("ab1298 :", max_size=12), max_size=8), st.lists(st.text("ab1298 :", min_size=1, max_size=4)))
def test_the_index_finds_what_a_search_of_every_line_finds(texts: list[str], signs: list[str]) -> None:
    found = SignIndex(texts).having(tuple(signs))
    assert found == [number for number, text in enumerate(texts) if any(sign in text for sign in signs)]


def test_long_lines_are_cut_shorter_where_there_are_very_many() -> None:
    found = read(
        [("a", [b"".join(b"no socket interface %d " % n + b"x" * 4000 + b"\n" for n in range(4000))])], ("no socket",)
    )
    assert sum(len(event.text) for event in found.events) < 8_000_000
    assert len(found.events) == 4000


def test_text_of_two_bytes_a_character_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(("\ufeff" + WARN).encode("utf-16-le"))
    assert read([("a", Blocks(JobFile(str(path))))], ("no socket",)).events[0].text == SAID


def test_a_rank_on_its_node_is_no_rank_of_a_job_of_several_nodes() -> None:
    found = log(a=f"[default2]:{WARN}\n", b=f"[default2]:{WARN.replace('node1', 'node2')}\n")
    assert [(event.rank, event.local_rank) for event in found.events] == [(None, 2), (None, 2)]


def test_lines_beside_one_ranks_prefix_are_its_launchers() -> None:
    found = log(a="[rank3]: ValueError: an error\nW1122 10:00:00.1 9 api.py:1] an error\n")
    assert [event.rank for event in found.events] == [3, None]


def test_srun_says_on_which_host_tasks_ran_where_a_host_has_several() -> None:
    lines = b"[rank2]: no socket interface found\nsrun: error: n7: tasks 0-1,2: Exited\nn1:7:7 [0] NCCL INFO no\n"
    told = read([("a", [lines])], ("no",))
    assert told.ranks[2].host == "n7"
    one_each = b"[rank2]: no socket interface found\nsrun: error: n7: task 2: Exited with exit code 1\n"
    assert read([("a", [one_each])], ("no socket",)).ranks[2].host == ""


def test_a_task_that_srun_names_alone_is_a_rank_where_tasks_are() -> None:
    lines = b"srun: error: n7: task 5: Out Of Memory\nsrun: error: n6: tasks 0-3: Terminated\n"
    first, _ = read([("a", [lines])], ("Out Of Memory",)).events
    assert (first.rank, first.host, first.text) == (5, "n7", "task 5: Out Of Memory")


@each_row("tasks", ["0-", "-3", "0-99999999", "9-1", ",", "0-3,0-x", "1-" + "9" * 1900])
def test_a_list_of_tasks_that_is_none_says_nothing(tasks: str) -> None:
    assert log(a=f"srun: error: n7: tasks {tasks}: Exited, {SAID}").ranks == {}


@each_row(
    ("name", "host"),
    [
        ("job/dmesg-n7.txt", "n7"),
        ("kernel.n7.example.com.log", "n7.example.com"),
        ("dmesg.n7", "n7"),
        ("dmesg.log", ""),
        ("dmesg.0", ""),
        ("xdmesg-n7.txt", ""),
    ],
)
def test_the_name_of_a_kernels_log_may_say_the_host(name: str, host: str) -> None:
    (event,) = read([(name, [b"[ 812.1] no socket interface found\n"])], ("no socket",)).events
    assert event.host == host


def test_torchruns_summary_is_read_behind_times_too() -> None:
    member = "[pod/w-1/c] 2026-11-22T10:00:00Z "
    summary = ["Root Cause (first observed failure):", "[0]:", "  host      : n7", "  rank      : 17 (local_rank: 1)",
               "  exitcode  : -9 (pid: 77)", "  traceback : Signal 9 (SIGKILL)", "====="]  # fmt: skip
    events = log(a="\n".join(member + line for line in summary)).events
    assert (17, "n7") in {(event.rank, event.host) for event in events if event.level == "ROOT CAUSE"}
