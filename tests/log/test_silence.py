"""Who says nothing where others complain: ranks that were killed, that hang, that came late; and who is left alone."""

import json
from pathlib import Path
from typing import Any

from ncclprobe.commands import explain
from ncclprobe.logs.reader import read
from tests.each_row import each_row

CLOSED = "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34217."
WAITED = (
    "RuntimeError: [third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv "
    "operation to complete"
)
TRACE = 'Traceback (most recent call last):\n  File "/opt/site/torch/distributed_c10d.py", line 9, in wait\n'


def complains(rank: int, of: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in (TRACE + of).split("\n") if line)


def explained(folder: Path, texts: dict[str, str]) -> dict[str, Any]:
    logs = folder / "logs"
    logs.mkdir()
    for name, text in texts.items():
        (logs / name).write_text(text)
    report = folder / "report.json"
    assert explain.main([str(logs), "--json", str(report), "-q"]) == 0
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def files(said: dict[int, str], steps: int = 7) -> dict[str, str]:
    """Return the logs of ranks that make steps, and then say what is given."""
    made = "".join(f"2026-11-23 10:00:{step:02d} step {step} loss 2.0\n" for step in range(steps))
    return {f"rank{rank}.log": made + (complains(rank, text) if text else "") for rank, text in said.items()}


@each_row("of", [2, 8])
def test_a_rank_whose_log_just_ends_while_the_others_lose_it_is_named(tmp_path: Path, of: int) -> None:
    (found,) = explained(tmp_path, files({rank: "" if rank == 1 else CLOSED for rank in range(of)}))["causes"]
    assert (found["code"], found["confidence"], found["ranks"]) == ("rank-crashed", "named", [1])
    (suspect,) = found["suspects"]
    assert (suspect["rank"], suspect["last_line"], suspect["step"]) == (1, "step 6 loss 2.0", 6)
    assert suspect["source"].endswith("rank1.log")
    assert "journalctl -k --utc --since '2026-11-23 09:59:06'" in found["collect"][0]


def test_a_rank_whose_host_refuses_the_others_is_named_too(tmp_path: Path) -> None:
    refused = "RuntimeError: [gloo/transport/tcp/pair.cc:799] connect [127.0.0.1]:4021: Connection refused"
    of_nccl = (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error\nLast error:\n"
        "socketPollConnect: connect to 10.0.0.2<4021> returned Connection refused, exceeded error retry count after 35"
    )
    for folder, text in (("gloo", refused), ("nccl", of_nccl)):
        (tmp_path / folder).mkdir()
        found = explained(tmp_path / folder, files({0: text, 1: text, 2: "", 3: text}))["causes"][0]
        assert (found["code"], found["confidence"], found["ranks"]) == ("rank-crashed", "named", [2])


def test_a_rank_that_others_only_waited_for_may_live_still(tmp_path: Path) -> None:
    (found,) = explained(tmp_path, files({0: WAITED, 1: WAITED, 2: "", 3: WAITED}))["causes"]
    assert (found["could_be"], found["ranks"]) == (["timeout-straggler", "rank-crashed"], [2])


def test_a_rank_that_lost_connections_where_all_others_waited_came_late(tmp_path: Path) -> None:
    (found,) = explained(tmp_path, files({0: WAITED, 1: WAITED, 2: CLOSED, 3: WAITED}))["causes"]
    assert found["could_be"][0] == "timeout-straggler"
    assert found["ranks"] == [2]


@each_row("words", ["Error: shard 7 is gone", "FATAL shard 7 is gone", "Failed to open shard 7"])
def test_a_rank_that_ends_with_words_of_its_own_is_named_by_them(tmp_path: Path, words: str) -> None:
    texts = files({0: CLOSED, 1: "", 2: CLOSED, 3: CLOSED})
    texts["rank1.log"] += f"{words}\n"
    (found,) = explained(tmp_path, texts)["causes"]
    assert (found["code"], found["confidence"], found["ranks"]) == ("rank-crashed", "named", [1])
    assert found["evidence"][0]["text"] == words


def test_files_that_number_all_ranks_tell_whose_they_are(tmp_path: Path) -> None:
    ended = "W1123 10:00:09.1 77 init.cc:217] *** SIGTERM (@0x3e8) received by PID 77 (TID 0x7) from PID 7; ***\n"
    made = files(dict.fromkeys(range(4), ""))
    texts = {f"workerlog.{rank}": made[f"rank{rank}.log"] + (ended if rank != 2 else "") for rank in range(4)}
    (found,) = explained(tmp_path, texts)["causes"]
    assert (found["code"], found["ranks"]) == ("rank-crashed", [2])


def test_ranks_that_all_lost_one_peer_and_leave_a_hosts_share_of_numbers_lost_that_host(tmp_path: Path) -> None:
    lost = "n{0}:7:7 [0] x.cc:9 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.3<4711>\n"
    texts = files(dict.fromkeys(range(8), ""))
    for rank in (0, 1, 2, 3, 6, 7):
        texts[f"rank{rank}.log"] += lost.format(rank // 2)
    (found,) = explained(tmp_path, texts)["causes"]
    assert (found["could_be"], found["ranks"]) == (["rank-crashed", "peer-unreachable"], [4, 5])
    assert "10.0.0.3" in found["message"]


@each_row(("peers", "named"), [(("w-2.job", "w-2.job"), True), (("w-2.job", "w-1.job"), False)])
def test_a_process_to_which_all_lost_their_connections_has_ended(tmp_path: Path, peers: Any, named: bool) -> None:
    lost = "w-{0}:7:7 [0] x.cc:9 NCCL WARN socketProgress: Connection closed by remote peer {1}<4711>\n"
    text = lost.format(1, peers[0]) + lost.format(3, peers[1])
    first = explained(tmp_path, {"pods.log": text})["causes"][0]
    assert (first["nodes"] == ["w-2.job"] and first["could_be"][:1] == ["rank-crashed"]) == named


def test_an_empty_log_is_of_a_rank_that_wrote_nothing(tmp_path: Path) -> None:
    texts = files({0: CLOSED, 1: CLOSED, 3: CLOSED}) | {"rank2.log": ""}
    (found,) = explained(tmp_path, texts)["causes"]
    assert (found["code"], found["ranks"]) == ("rank-crashed", [2])
    assert found["suspects"][0]["last_line"] == ""


def test_a_rank_without_a_log_is_known_by_the_size_of_the_job(tmp_path: Path) -> None:
    texts = files({0: CLOSED, 1: CLOSED, 3: CLOSED})
    texts["rank0.log"] = "started, world size 4\n" + texts["rank0.log"]
    (found,) = explained(tmp_path, texts)["causes"]
    assert (found["could_be"][0], found["confidence"], found["ranks"]) == ("rank-crashed", "narrowed", [2])


def test_a_rank_without_a_log_may_have_waited_in_another_call(tmp_path: Path) -> None:
    texts = {name: f"world size 4\n{text}" for name, text in files({0: WAITED, 1: WAITED, 3: WAITED}).items()}
    (found,) = explained(tmp_path, texts)["causes"]
    assert (found["could_be"], found["ranks"]) == (["timeout-straggler", "rank-crashed", "collective-desync"], [2])


def test_a_reason_that_any_rank_gives_comes_before_who_says_nothing(tmp_path: Path) -> None:
    texts = files({0: CLOSED, 1: "ValueError: bad sample 17", 2: "", 3: CLOSED})
    (found,) = explained(tmp_path, texts)["causes"]
    assert (found["code"], found["ranks"], found["suspects"]) == ("rank-crashed", [1], [])


@each_row(
    "said",
    [
        {0: "", 1: "", 2: ""},
        {0: CLOSED, 1: CLOSED, 2: CLOSED, 3: CLOSED},
        {0: CLOSED, 1: "", 2: "", 3: ""},
    ],
    ids=["nobody complains", "all complain", "most say nothing: they have no log of their own"],
)
def test_nobody_is_suspected_without_a_reason(tmp_path: Path, said: dict[int, str]) -> None:
    causes = explained(tmp_path, files(said))["causes"]
    assert len(causes) == int(any(said.values()))
    for cause in causes:
        assert cause["confidence"] == "unknown"
        assert cause["suspects"] == []


def test_logs_of_some_ranks_alone_accuse_no_other(tmp_path: Path) -> None:
    """Whose log was not given is not silent, where nothing says how many ranks there are."""
    (found,) = explained(tmp_path, files({1: WAITED, 2: WAITED}))["causes"]
    assert (found["confidence"], found["suspects"]) == ("unknown", [])


def test_the_receiver_of_another_size_is_not_blamed_for_what_it_received(tmp_path: Path) -> None:
    line = "what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 20000 vs 10000."
    texts = files({0: "", 1: CLOSED, 2: CLOSED, 3: CLOSED})
    texts["rank0.log"] += f"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  {line}\n"
    first = explained(tmp_path, texts)["causes"][0]
    assert (first["code"], first["ranks"], first["suspects"]) == ("collective-desync", [], [])


SRUN = "".join(f"{rank}: step {step}\n" for step in range(5) for rank in range(4))


def test_the_task_that_srun_saw_end_first_is_the_culprit(tmp_path: Path) -> None:
    text = SRUN + "".join(f"{rank}: {line}" for rank in (0, 1, 3) for line in complains(rank, CLOSED).splitlines(True))
    text += "srun: error: n1: task 2: Killed\nsrun: error: n0: tasks 0-1: Exited with exit code 1\n"
    first = explained(tmp_path, {"slurm-4711.out": text})["causes"][0]
    assert (first["code"], first["confidence"], first["ranks"]) == ("rank-crashed", "named", [2])
    assert any("sacct -j 4711" in step for step in first["collect"])


def test_a_task_that_srun_ended_after_the_others_is_none(tmp_path: Path) -> None:
    text = SRUN + "".join(f"{rank}: {line}" for rank in (0, 1, 3) for line in complains(rank, WAITED).splitlines(True))
    text += "srun: error: n0: tasks 0-1: Exited with exit code 1\nsrun: error: n1: task 2: Killed\n"
    first = explained(tmp_path, {"slurm-4711.out": text})["causes"][0]
    assert (first["could_be"][0], first["ranks"]) == ("timeout-straggler", [2])


def test_all_ranks_of_a_host_that_say_nothing_are_a_host_that_was_lost(tmp_path: Path) -> None:
    start = (
        "{host}:{pid}:9 [0] NCCL INFO comm 0x5 rank {rank} nranks 4 cudaDev 0 busId 7000 commId 0x9 - Init COMPLETE\n"
    )
    lost = "{host}:{pid}:9 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer n1<52123>\n"
    texts = {}
    for rank in range(4):
        own = {"host": f"n{rank // 2}", "pid": 70 + rank, "rank": rank}
        texts[f"{rank}.log"] = start.format(**own) + (lost.format(**own) if rank < 2 else "")
    first = explained(tmp_path, texts)["causes"][0]
    assert (first["could_be"][0], first["ranks"], first["nodes"]) == ("rank-crashed", [2, 3], ["n1"])


@each_row(
    ("texts", "ranks"),
    [
        ({"a": "[rank0]: x", "b": "[rank1]: x", "c": "starts"}, [0, 1, 2]),
        ({"a": "[rank0]: x", "b": "[rank4]: x", "c": "starts"}, [0, 4]),
        ({"a": "[rank0]: x\n[rank1]: x", "b": "[rank2]: x", "c": "starts"}, [0, 1, 2]),
        ({"rank0.log": "x", "rank1.log": "x", "config.json": "{}"}, [0, 1]),
    ],
    ids=["of each rank one, the last is left over", "of two hosts", "of several ranks", "others have theirs by name"],
)
def test_a_log_that_names_no_rank_is_of_the_one_that_is_left_over(texts: dict[str, str], ranks: list[int]) -> None:
    log = read((name, [f"{text} failed\n".encode()]) for name, text in texts.items())
    assert list(log.ranks) == ranks


@each_row(
    ("text", "size"),
    [
        ("started, world size 4", 4),
        ("world_size=16 rank=3", 16),
        ("{'world_size': 8}", 8),
        ("Timed out after 9 seconds waiting for clients. 3/4 clients joined.", 4),
        ("world size unknown", None),
        ("world_size=2\nworld_size=8\nworld_size=8", 8),
    ],
)
def test_the_size_of_a_job_is_what_most_lines_say(text: str, size: int | None) -> None:
    assert read([("a", [text.encode()])]).world_size == size


@each_row(
    ("text", "rank"),
    [("rank 3: step 7 failed", 3), ("Rank 3/8 | step 7 failed", 3), ("rank 3 failed to pass", None)],
)
def test_a_rank_that_a_program_writes_before_its_words_is_its_writer(text: str, rank: int | None) -> None:
    (event,) = read([("a", [text.encode()])]).events
    assert event.rank == rank


NCCL_WAITED = (
    "[rank{r}]:[E1123 10:00:{s:02d}.000000000 ProcessGroupNCCL.cpp:757] [Rank {r}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=12000) ran for 12010 "
    "milliseconds\n"
)


def test_a_rank_that_gave_up_the_same_collective_later_is_not_to_blame(tmp_path: Path) -> None:
    """All waited for the same, so none is missing: what failed may be the network."""
    texts = {f"rank{rank}.log": NCCL_WAITED.format(r=rank, s=9 if rank == 2 else 1) for rank in range(4)}
    (found,) = explained(tmp_path, texts)["causes"]
    assert (found["confidence"], found["suspects"]) == ("unknown", [])


def test_an_exception_of_no_known_rank_may_be_of_the_one_that_seems_silent(tmp_path: Path) -> None:
    text = SRUN.replace("0: ", "").replace("1: ", "").replace("2: ", "").replace("3: ", "") + "world size 3\n"
    lost = "DistBackendError: NCCL error in: a.cpp:1, remote process exited or there was a network error"
    text += f"{TRACE}torch.distributed.{lost}\n" + complains(1, CLOSED) + complains(2, CLOSED)
    (found,) = explained(tmp_path, {"train.log": text})["causes"]
    assert found["confidence"] == "unknown"


def test_the_size_of_a_smaller_group_is_not_that_of_the_job(tmp_path: Path) -> None:
    texts = {
        name: f"tensor parallel world size 2\n{text}" for name, text in files({0: CLOSED, 1: CLOSED, 3: ""}).items()
    }
    (found,) = explained(tmp_path, texts)["causes"]
    assert found["ranks"] == [3]


def test_the_barrier_at_the_start_names_the_rank_that_is_not_among_those_that_came(tmp_path: Path) -> None:
    at = "INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:1 to store for rank: {}\n"
    late = (
        "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank 0, for "
        "key: store_based_barrier_key:1 (world_size=4, num_workers_joined=3, timeout=0:30:00)\n"
    )
    text = "".join(at.format(rank) for rank in (0, 1, 3)) + "Traceback (most recent call last):\n" + late
    first = explained(tmp_path, {"one.log": text})["causes"][0]
    assert (first["ranks"], first["confidence"], first["blame"]) == ([2], "narrowed", "unknown")


def test_of_torchruns_prefixes_the_rank_that_says_nothing_is_known_with_its_step(tmp_path: Path) -> None:
    said = "[default{0}]:INFO:train: step={1} loss=2.1\n"
    text = "".join(said.format(rank, step) for step in (10, 20) for rank in range(8) if rank != 7 or step < 20)
    text += "".join(
        f"[default{rank}]:[E ProcessGroupNCCL.cpp:566] [Rank {rank}] Watchdog caught collective operation timeout: "
        "WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1806200 milliseconds before timing out.\n"
        for rank in range(7)
    )
    first = explained(tmp_path, {"one.log": text})["causes"][0]
    assert first["ranks"] == [7]
    assert [(each["rank"], each["step"]) for each in first["suspects"]] == [(7, 10)]


def test_what_slurms_daemon_writes_is_no_line_of_the_task_that_it_is_labelled_with(tmp_path: Path) -> None:
    waits = (
        "{0}: torch.distributed.DistBackendError: [{0}] is setting up NCCL communicator and retrieving ncclUniqueId "
        "from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout\n"
    )
    text = "".join(f"{rank}: building shard {rank}\n" for rank in range(6)) * 3
    text += "".join(waits.format(rank) for rank in range(1, 6))
    text += "srun: error: node2: task 5: Exited with exit code 1\n"
    text += "0: slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED ***\n"
    first = explained(tmp_path, {"7.out": text})["causes"][0]
    assert first["ranks"] == [0]
    assert [each["last_line"] for each in first["suspects"]] == ["building shard 0"]


def test_a_file_whose_processes_nccl_names_by_one_rank_is_that_ranks(tmp_path: Path) -> None:
    init = "h{0}:7:9 [0] NCCL INFO comm 0x1 rank {0} nranks 3 cudaDev 0 busId 7 commId 0xa - Init COMPLETE\n"
    lost = "h{0}:8:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer h1<40216>\n"
    files = {f"out.h{rank}": init.format(rank) + f"batch {40 - rank} loss 2\n" for rank in range(3)}
    for rank in (0, 2):
        files[f"out.h{rank}"] += lost.format(rank)
    first = explained(tmp_path, files)["causes"][0]
    assert first["ranks"] == [1]


def test_containers_that_a_driver_wraps_may_number_their_lines(tmp_path: Path) -> None:
    lines = [f"r{rank} round {turn} loss=1.9" for turn in range(4) for rank in range(3)]
    lines += [
        f"r{rank} RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:9"
        for rank in (0, 2)
    ]
    text = "".join(
        json.dumps({"log": f"{line}\n", "time": f"2025-12-12T12:00:{at:02}Z"}) + "\n" for at, line in enumerate(lines)
    )
    assert explained(tmp_path, {"compose.json.log": text})["causes"][0]["ranks"] == [1]


_WAITS = ("all_reduce (torch/distributed/distributed_c10d.py:2450)", "wrapper (torch/distributed/c10d_logger.py:83)",
          "sync (trainer/loop.py:88)", "<module> (train.py:55)")  # fmt: skip
_READS = ("wait (threading.py:320)", "get (queue.py:171)", "__next__ (torch/utils/data/dataloader.py:701)",
          "main (train.py:31)", "<module> (train.py:55)")  # fmt: skip
_SAVES = ("barrier (torch/distributed/distributed_c10d.py:3680)", "save (train.py:12)", "<module> (train.py:55)")
_WORKER = ("wait (threading.py:1)", "_worker_loop (torch/utils/data/_utils/worker.py:275)")


def stack(frames: tuple[str, ...], command: str = "python train.py", pid: int = 7) -> str:
    body = "".join(f"    {frame}\n" for frame in frames)
    return f'Process {pid}: {command}\nPython v3.11.9 (/usr/bin/python3)\n\nThread {pid} (idle): "MainThread"\n{body}'


def hung(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    for name, text in files.items():
        (folder / name).write_text(text)
    explain.main([*(str(folder / name) for name in files), "--json", str(folder / "report.json"), "-q"])
    causes: list[dict[str, Any]] = json.loads((folder / "report.json").read_text())["causes"]
    return causes[0] if causes else {}


@each_row(
    "files",
    [
        {f"spy_rank{rank}.txt": stack(_READS if rank == 2 else _WAITS) for rank in range(4)},
        {
            "spy.txt": "".join(
                f"== rank {r} ==\n{stack(_READS if r == 2 else _WAITS)}{stack(_WORKER)}" for r in range(4)
            )
        },
        {"spy.txt": "".join(stack(_READS if r == 2 else _WAITS, f"python x --local_rank={r}") for r in range(4))},
        {f"spy_rank{rank}.txt": stack(_SAVES if rank == 2 else _WAITS) for rank in range(4)},
        {
            "spy.txt": "".join(stack(_READS if rank == 2 else _WAITS, pid=100 + rank) for rank in range(4)),
            "nccl.log": "".join(
                f"n1:{100 + r}:7 [{r}] NCCL INFO comm 0x5 rank {r} nranks 4 cudaDev 0 - Init COMPLETE\n"
                for r in range(4)
            ),
        },
    ],
    ids=["by the file's name", "by a line before it", "by its command", "in another call", "by a log"],
)
def test_the_rank_that_stands_elsewhere_by_its_stack_is_told(tmp_path: Path, files: dict[str, str]) -> None:
    cause = hung(tmp_path, files)
    assert (cause["confidence"], cause["ranks"]) == ("narrowed", [2])
    assert "train.py:" in cause["message"]
    assert "all_reduce" in cause["message"]
    late = "save" not in cause["message"]
    assert cause["could_be"][0] == ("timeout-straggler" if late else "collective-desync")


def test_the_thread_that_is_in_the_call_counts_and_json_is_read_too(tmp_path: Path) -> None:
    frames = [{"name": "step", "filename": "/x/train.py", "short_filename": "train.py", "line": 9}]
    call = [{"name": "all_reduce", "filename": "/p/torch/distributed/distributed_c10d.py", "line": 7}, *frames]
    for rank in range(3):
        threads = [{"pid": 7, "thread_name": "MainThread", "owns_gil": False, "frames": frames}]
        threads += [{"pid": 7, "thread_name": None, "owns_gil": False, "frames": call}] if rank else []
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(threads))
    assert hung(tmp_path, {f"rank{rank}.json": (tmp_path / f"rank{rank}.json").read_text() for rank in range(3)})[
        "ranks"
    ] == [0]


def test_processes_whose_first_lines_are_lost_are_told_apart_by_their_main_threads(tmp_path: Path) -> None:
    spied = [stack(_READS if pid == 9 else _WAITS, pid=pid).partition("\n\n")[2] for pid in (7, 8, 9, 10)]
    cause = hung(tmp_path, {"spy.txt": "".join(spied)})
    assert cause["message"].startswith("process 9 is in wait (train.py:31 in main), while 3 others are in")


def test_processes_that_all_stand_in_one_call_have_no_cause_that_is_named(tmp_path: Path) -> None:
    cause = hung(tmp_path, {f"rank{rank}.txt": stack(_WAITS) for rank in range(4)})
    assert (cause["confidence"], "4 of 4 processes are in all_reduce" in cause["message"]) == ("unknown", True)
    assert hung(tmp_path, {"rank0.txt": stack(_READS)}) == {}


_BEGUN = (
    "{host}:{pid}:{pid} [0] NCCL INFO comm 0x5 rank {rank} nranks 4 cudaDev 0 nvmlDev 0 busId 7000 commId 0x9 - Init "
    "COMPLETE\n"
)
_KERNEL = "2026-03-11T10:04:34.1+00:00 n1 kernel: "


def job_without(lost: int, folder: Path, **more: str) -> list[dict[str, Any]]:
    """The causes by four logs, two to a host, of which one ends without a word, and by what else was given."""
    closed = complains(
        0, "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, remote process exited or there was"
    )
    logs = {
        f"rank{rank}.log": _BEGUN.format(host=f"n{rank // 2}", pid=40 + rank, rank=rank)
        + ("" if rank == lost else closed.replace("rank0", f"rank{rank}"))
        for rank in range(4)
    }
    for name, text in more.items():
        logs[name] = logs.get(name, "") + text
    found: list[dict[str, Any]] = explained(folder, logs)["causes"]
    return found


def test_the_rank_is_named_whose_process_the_kernel_killed(tmp_path: Path) -> None:
    killed = f"{_KERNEL}Memory cgroup out of memory: Killed process 43 (python) total-vm:3kB\n"
    (cause,) = job_without(3, tmp_path, **{"kernel.n1.log": killed})
    assert (cause["confidence"], cause["ranks"], cause["nodes"]) == ("named", [3], ["n1"])
    assert [each["rank"] for each in cause["suspects"]] == [3]


def test_the_silent_rank_stands_beside_a_cause_that_names_none(tmp_path: Path) -> None:
    (cause,) = job_without(2, tmp_path, **{"pod.txt": "    State:   Terminated\n      Reason:  OOMKilled\n"})
    assert (cause["confidence"], cause["ranks"]) == ("named", [])
    assert [each["rank"] for each in cause["suspects"]] == [2]


def test_what_happened_to_a_host_explains_what_its_rank_says_of_its_end(tmp_path: Path) -> None:
    xid = f"{_KERNEL}NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>\n"
    own = complains(3, "RuntimeError: CUDA error: unspecified launch failure")
    (cause,) = job_without(3, tmp_path, **{"kernel.n1.log": xid, "rank3.log": own})
    assert (cause["code"], cause["confidence"], cause["nodes"]) == ("gpu-hw-error", "named", ["n1"])


def test_a_good_end_is_told_of_the_log_that_tells_it(tmp_path: Path) -> None:
    texts = {"a.log": "world size 2\nstep 1\n", "b.log": "world size 2\nstep 1\ntraining finished\n"}
    (line,) = explained(tmp_path, texts)["ended_well"]
    assert line["source"].endswith("b.log")
