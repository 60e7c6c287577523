"""What people paste beside a log, and what kernels and transports say by their settings alone."""

import json
from pathlib import Path
from typing import Any

from ncclprobe.commands import explain
from tests.each_row import each_row
from tests.log.test_outcome import accused, explained, first_cause, steps


def cause(folder: Path, text: str) -> dict[str, Any]:
    return first_cause(folder, {"train.log": text})


REFUSED = "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"


@each_row(
    "limit", ["$ ulimit -l\nunlimited\n", "max locked memory       (kbytes, -l) unlimited\n",
              "Max locked memory         unlimited            unlimited            bytes\n"]
)  # fmt: skip
def test_a_limit_that_is_shown_not_to_be_there_is_no_cause(tmp_path: Path, limit: str) -> None:
    found = cause(tmp_path, REFUSED + limit)
    assert (found["code"], found["confidence"]) == ("unknown", "unknown")
    assert "locked memory is not limited" in found["message"]


@each_row("host", ["n1", "n2"])
def test_a_limit_that_is_not_there_on_one_host_clears_no_other(tmp_path: Path, host: str) -> None:
    asked = f"{host}:8:8 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n$ ulimit -l\nunlimited\n"
    found = first_cause(tmp_path, {"train.log": REFUSED, "shell.log": asked})
    assert (found["code"] == "memlock") is (host == "n2")


@each_row(
    "limit",
    ["", "$ ulimit -l\n64\n", "core file size (blocks, -c) unlimited\n",
     "Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)\n"],
)  # fmt: skip
def test_a_limit_that_is_not_shown_stays_the_cause(tmp_path: Path, limit: str) -> None:
    assert cause(tmp_path, REFUSED + limit)["code"] == "memlock"


ROCE = "n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/{link} [RO]; OOB eth0:10.0.0.1<0>\n"
NO_ANSWER = (
    "n1:7:9 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 12, opcode 0, "
    "len 0, vendor err 129 (Send) localGid {local} remoteGid {remote}\n"
)
BARE, ROUTED = {"local": "fe80::1:2", "remote": "fe80::1:3"}, {"local": "::ffff:10.0.0.1", "remote": "::ffff:10.0.0.2"}
INDEX = "n1:7:7 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 0.\n"


def test_gids_without_an_address_are_why_roce_gets_no_answer(tmp_path: Path) -> None:
    found = cause(tmp_path, INDEX + ROCE.format(link="RoCE") + NO_ANSWER.format(**BARE))
    assert (found["code"], found["confidence"], found["blame"]) == ("ib-gid", "named", "job")
    assert "show_gids" in found["fix"]


def test_by_nccls_two_halves_of_a_gid_it_is_known_as_well(tmp_path: Path) -> None:
    own = "n1:7:9 [0] NCCL INFO NET/IB: Dev 0 Port 1 qpn 9 mtu 3 GID 0 (80FE/F6999FC94888C024)\n"
    bare = NO_ANSWER.partition(" localGid")[0] + "\n"
    found = cause(tmp_path, ROCE.format(link="RoCE") + own + bare)
    assert (found["code"], found["confidence"]) == ("ib-gid", "narrowed")


@each_row(("link", "gids"), [("IB", BARE), ("RoCE", ROUTED)])
def test_infinibands_gids_and_those_of_an_address_are_not_to_blame(
    tmp_path: Path, link: str, gids: dict[str, str]
) -> None:
    assert cause(tmp_path, ROCE.format(link=link) + NO_ANSWER.format(**gids))["code"] != "ib-gid"


STARTED = "n{0}:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.{0}<0> [1]enP4s1:fe80::20d:{0}%enP4s1<0>\n"
TO_LINK_LOCAL = (
    "n2:7:9 [0] misc/socket.cc:4 NCCL WARN socketStartConnect: Connect to fe80::20d:1%enP4s1<4> failed : {}\n"
)


@each_row("error", ["Software caused connection abort", "Connection timed out", "No route to host"])
def test_a_link_local_address_of_ipv6_leads_to_no_other_host(tmp_path: Path, error: str) -> None:
    found = cause(tmp_path, STARTED.format(1) + STARTED.format(2) + TO_LINK_LOCAL.format(error))
    assert found["code"] == "iface-wrong-veth"
    assert "enP4s1" in found["message"]
    assert "NCCL_SOCKET_IFNAME" in found["fix"]


def test_who_refuses_at_a_link_local_address_was_reached(tmp_path: Path) -> None:
    found = cause(tmp_path, STARTED.format(1) + STARTED.format(2) + TO_LINK_LOCAL.format("Connection refused"))
    assert found["code"] != "iface-wrong-veth"


EFA = (
    "n{host}:7:9 [0] ofi_process_cq:1039 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 20. Error: unknown "
    "error. Completed length: 0, Request: {{ buffer_index: 255, dev: 1, size: 0, state: CREATED, direction: SEND }}\n"
)


def test_hosts_that_never_answer_each_other_are_kept_apart_by_a_security_group(tmp_path: Path) -> None:
    found = cause(tmp_path, EFA.format(host=1) + EFA.format(host=2))
    assert (found["code"], found["suspects"]) == ("efa-security-group", [])


@each_row("text", [EFA.format(host=1), steps(1, 9) + EFA.format(host=1) + EFA.format(host=2)])
def test_one_that_stops_answering_has_gone(tmp_path: Path, text: str) -> None:
    assert cause(tmp_path, text)["code"] == "rank-crashed"


def test_a_drivers_message_is_of_one_host(tmp_path: Path) -> None:
    lines = ["n1 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0", "n2 kernel: NVRM: The NVIDIA GPU 0000:c3:00.0",
             "n1 kernel:        NVRM: fallen off the bus and is not responding to commands."]  # fmt: skip
    found = cause(tmp_path, "".join(f"Oct 25 06:04:11 {line}\n" for line in lines))
    assert (found["nodes"], "GPU 0000:b3:00.0" in found["message"]) == (["n1"], True)


XID = "Nov 28 02:11:01 n1 kernel: NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE {} XC0 i0 Link 13 (0x0 0x8)\n"


def test_what_the_driver_calls_not_fatal_ends_no_job(tmp_path: Path) -> None:
    assert accused(explained(tmp_path, XID.format("Nonfatal") + steps(1, 9))) == []
    found = cause(tmp_path, XID.format("Fatal"))
    assert found["code"] == "gpu-hw-error"
    assert "GPU 0000:01:00" in found["message"]


def test_a_gpu_is_named_in_the_first_of_the_drivers_lines(tmp_path: Path) -> None:
    lines = ["NVRM: The NVIDIA GPU 0000:b3:00.0", "       NVRM: (PCI ID: 10de:26b5) installed in this system has",
             "       NVRM: fallen off the bus and is not responding to commands."]  # fmt: skip
    found = cause(tmp_path, "".join(f"Oct 25 06:04:1{n} n1 kernel: {line}\n" for n, line in enumerate(lines)))
    assert "GPU 0000:b3:00.0" in found["message"]


def test_gpus_without_peer_access_are_no_fault_of_isolation(tmp_path: Path) -> None:
    found = cause(tmp_path, "RuntimeError: CUDA error: peer access is not supported between these two devices\n")
    assert (found["code"], found["confidence"], found["blame"]) == ("p2p-unsupported", "named", "job")


WAITED = (
    "[E ProcessGroupNCCL.cpp:821] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1803472 milliseconds before timing out.\n"
)


def bar(done: int, title: str = "Tokenizing") -> str:
    return f"{title}: {done // 10:3d}%|##        | {done}/1000 [{done // 4}:09<95:01, 1.98it/s]\n"


def elapsed(done: int, minutes: int, title: str = "Map") -> str:
    return f"{title}: {done // 10:3d}%|##        | {done}/1000 [{minutes}:09<95:01, 1.98it/s]\n"


BEGUN_ANEW = (
    "I0301 10:30:10 1 agent/api.py:914] [default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
)


def test_a_bar_of_another_attempt_or_one_that_did_not_go_on_shows_nothing(tmp_path: Path) -> None:
    for text in (elapsed(100, 9) + WAITED.format(1) + BEGUN_ANEW + elapsed(200, 12),
                 elapsed(100, 9) + WAITED.format(1) + elapsed(200, 3)):  # fmt: skip
        assert "at work of its own" not in cause(tmp_path, text)["message"]


NO_ID = (
    "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store "
    "by key '0', but store->get('0') got error: Socket Timeout\n"
)


@each_row("waited", [WAITED.format(1), NO_ID])
def test_a_progress_bar_that_goes_on_shows_that_a_rank_was_at_work(tmp_path: Path, waited: str) -> None:
    found = cause(tmp_path, bar(100) + bar(110) + waited + bar(120))
    assert (found["code"], found["ranks"], found["blame"]) == ("timeout-straggler", [], "job")
    assert "Tokenizing" in found["message"]


@each_row("text", [bar(100) + WAITED.format(1) + bar(100), bar(100) + WAITED.format(1),
                         bar(100) + WAITED.format(1) + bar(300, "Epoch 3")])  # fmt: skip
def test_a_bar_that_stands_or_another_one_shows_nothing(tmp_path: Path, text: str) -> None:
    assert "at work of its own" not in cause(tmp_path, text)["message"]


MONITOR = (
    "[rank{0}]:[E731 22:25:41.1 ProcessGroupNCCL.cpp:1722] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Heartbeat monitor "
    "timed out! Process will be terminated after dumping debug info. workMetaList_.size()=0\n"
)
LOST = (
    "n2:7:9 [1] transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.9<4> with "
    "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_1\n"
)


def test_who_was_ended_by_its_own_monitor_explains_what_its_peers_say_of_the_network(tmp_path: Path) -> None:
    found = cause(tmp_path, MONITOR.format(3) + LOST)
    assert (found["code"], found["confidence"], found["ranks"]) == ("rank-crashed", "named", [3])
    assert "heartbeat monitor" in found["message"]


def test_monitors_after_a_collective_that_timed_out_explain_nothing(tmp_path: Path) -> None:
    assert "monitor" not in cause(tmp_path, WAITED.format(1) + WAITED.format(0) + MONITOR.format(0))["message"]


def test_monitors_of_all_ranks_blame_none(tmp_path: Path) -> None:
    found = cause(tmp_path, "".join(MONITOR.format(rank) for rank in range(8)))
    assert (found["confidence"], "did not end" in found["message"]) == ("unknown", True)
    few = steps(0, 3) + "".join(f"[rank{rank}]: loss 2\n" for rank in range(8)) + MONITOR.format(3) + MONITOR.format(5)
    found = cause(tmp_path, few)
    assert (found["code"], "ENABLE_MONITORING" in found["fix"]) == ("rank-crashed", False)


OOM = "2026-11-08 23:44:19 | WARNING | trainer | OOM: CUDA out of memory. Tried to allocate 1.95 GiB (GPU 2; 23 GiB)\n"
INCONSISTENT = 'Traceback (most recent call last):\n  File "t.py", line 3, in f\nFloatingPointError: gradients differ\n'


def test_memory_that_was_full_on_one_rank_is_why_all_then_disagree(tmp_path: Path) -> None:
    found = cause(tmp_path, OOM + INCONSISTENT)
    assert (found["code"], "GPU 2" in found["message"]) == ("oom", True)


def test_a_rank_that_went_on_with_less_has_not_failed(tmp_path: Path) -> None:
    assert explained(tmp_path, steps(0, 5) + OOM + steps(5, 40))["causes"] == []
    assert cause(tmp_path, steps(0, 5) + OOM + steps(5, 90) + INCONSISTENT)["code"] != "oom"


SAID = "[2026-05-20 07:44:03,881][app.train][INFO] - rank {}: {}\n"


def test_a_rank_whose_number_stands_behind_its_logger_had_ended(tmp_path: Path) -> None:
    text = SAID.format(0, "saving") + SAID.format(1, "done") + WAITED.format(0)
    found = cause(tmp_path, text)
    assert (found["code"], found["confidence"], found["ranks"]) == ("collective-desync", "named", [0, 1])
    assert "only rank 0 was waiting" in found["message"]


def test_a_full_cgroup_is_the_jobs_own_limit(tmp_path: Path) -> None:
    asked = "python invoked oom-killer: gfp_mask=0x140cca, order=0\n"
    limit = "oom-kill:constraint=CONSTRAINT_{},task=python,pid=7\n"
    assert cause(tmp_path, asked + "Call Trace:\n" + limit.format("MEMCG"))["blame"] == "job"
    assert cause(tmp_path, asked + "Call Trace:\n" + limit.format("NONE"))["blame"] != "job"


NATIVE = (
    'Process 9{0}: sglang::scheduler_TP{0}\nPython v3.12.3 (/usr/bin/python3.12)\n\nThread 9{0} (idle): "MainThread"\n'
    "{1}    sync (app/worker.py:{2})\n    run (app/main.py:7)\n\n"
)
INSIDE = "    ioctl (libc.so.6)\n    0x7f12 (libcuda.so.580.65)\n    cuStreamSynchronize (libcuda.so.580.65)\n"
BARRIER = "    barrier (torch/distributed/distributed_c10d.py:4812)\n"


def test_stacks_with_the_frames_of_libraries_are_read(tmp_path: Path) -> None:
    shell = "$ nvidia-smi\n" + "".join(f"{gpu}, 100 %\n" for gpu in range(8))
    dumps = "".join(NATIVE.format(rank, INSIDE if rank == 3 else BARRIER, 61 if rank == 3 else 9) for rank in range(5))
    found = cause(tmp_path, shell + dumps)
    assert (found["code"], found["ranks"]) == ("timeout-straggler", [3])
    assert "cuStreamSynchronize (app/worker.py:61 in sync)" in found["message"]


VLLM = (
    'Process 8{0}: VLLM::{1}\nPython v3.12.3 (/usr/bin/python3.12)\n\nThread 8{0} (idle): "MainThread"\n'
    "{2}    run (vllm/engine.py:{3})\n\n"
)
WAITS = "    wait (multiprocessing/connection.py:1136)\n"


def test_a_server_that_waits_for_its_workers_is_no_rank(tmp_path: Path) -> None:
    keeper = VLLM.format(0, "EngineCore", WAITS, 7)
    workers = [VLLM.format(rank + 1, f"Worker_TP{rank}", BARRIER, 9) for rank in range(4)]
    found = cause(tmp_path, keeper + "".join(workers))
    assert (found["confidence"], "4 of 4 processes" in found["message"]) == ("unknown", True)
    late = VLLM.format(3, "Worker_TP2", WAITS, 61)
    found = cause(tmp_path, keeper + "".join([*workers[:2], late, workers[3]]))
    assert (found["code"], found["ranks"]) == ("timeout-straggler", [2])


def test_a_server_that_has_no_workers_is_a_rank(tmp_path: Path) -> None:
    cores = [VLLM.format(rank, f"EngineCore_{rank}", WAITS if rank == 2 else BARRIER, 9) for rank in range(4)]
    assert "process 82 is in wait" in cause(tmp_path, "".join(cores))["message"]


@each_row(
    ("text", "code"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
         "RuntimeError: No CUDA GPUs are available\n", "cuda-driver-mismatch"),
        ("Failed to initialize NVML: Unknown Error\n", "gpu-isolation"),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9\n", "cuda-driver-mismatch"),
        ("mpirun was unable to launch the specified application as it could not access\n", "rank-crashed"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n", "oom"),
        ("RuntimeError: CUDA error: the launch timed out and was terminated\n", "rank-crashed"),
    ],
)  # fmt: skip
def test_what_drivers_containers_and_launchers_say_has_a_meaning(tmp_path: Path, text: str, code: str) -> None:
    assert cause(tmp_path, text)["code"] == code
    assert explained(tmp_path, steps(0, 5) + text + steps(5, 90) + "exit code 0\n")["causes"] == []


UNPLACED = "2m  Warning  FailedScheduling  pod/w-1  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.\n"
WAITING = "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.\n"


def test_a_pod_without_a_node_is_whom_the_others_wait_for(tmp_path: Path) -> None:
    assert "found no node for w-1" in cause(tmp_path, UNPLACED + WAITING)["message"]
    assert accused(explained(tmp_path, UNPLACED + steps(0, 9))) == []


PLACED = "1m  Normal  Scheduled  {}  Successfully assigned default/w-1 to n4\n"
OF_ONE_POD = (
    "  Warning  FailedScheduling  9m12s  default-scheduler  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.\n"
)


@each_row(
    "text",
    [OF_ONE_POD + PLACED.format("8m  default-scheduler") + WAITING, UNPLACED + PLACED.format("pod/w-1") + WAITING,
     UNPLACED + WAITED.format(1), UNPLACED + steps(0, 9) + "RuntimeError: x\n",
     "w-1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n" + PLACED.format("pod/w-1")
     + UNPLACED.replace("w-1", "other-job-0") + WAITING],
)  # fmt: skip
def test_a_pod_that_was_placed_or_of_another_job_or_of_ranks_that_met_is_no_cause(tmp_path: Path, text: str) -> None:
    found = cause(tmp_path, text)
    assert "found no node" not in found["message"]
    assert "FailedScheduling" not in found["evidence"][0]["text"]


def test_a_pod_of_which_its_line_tells_no_name_is_a_cause_while_none_is_placed(tmp_path: Path) -> None:
    assert "found no node for a pod" in cause(tmp_path, OF_ONE_POD + WAITING)["message"]


def test_what_the_kernel_says_of_a_host_is_no_cause_of_a_job_that_ended_well(tmp_path: Path) -> None:
    files = {"train.log": steps(0, 9) + "exit code 0\n", "kern.log": XID.format("Fatal").replace("145", "79")}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    report = tmp_path / "report.json"
    explain.main([*(str(tmp_path / name) for name in files), "--json", str(report), "-q"])
    found = json.loads(report.read_text())
    assert (found["outcome"], found["causes"]) == ("ended-well", [])
    assert any("worth checking" in note for note in found["notes"])


def test_lines_that_a_terminal_cut_are_whole_again(tmp_path: Path) -> None:
    text = "\n".join((
        "starting the job with a long line of options, each of which is worth nothing --alpha 1 --beta 2",
        "a second line which goes beyond the width of the window, as lines of real programs so often do, by some words",
        WAITED.format(1).strip(), "end of it",
    ))  # fmt: skip
    cut = "\n".join(line[at : at + 72] for line in text.split("\n") for at in range(0, len(line), 72))
    found = cause(tmp_path, cut)
    assert "ALLREDUCE number 2" in found["message"]
    assert found["evidence"][0]["line"] == 5
    alike = "".join(
        f"n1:7:9 [0] x.cc:9 NCCL WARN at 0x7f{at} of the rank that wrote it, and no more of it all\n" for at in "ac9"
    )
    assert "WARN" not in cause(tmp_path, alike + "RuntimeError: x\n")["evidence"][0]["text"]
    ruled = "\n".join(("-" * 72, text.partition("\n")[0][:72], "-" * 72, "step 7", "-" * 72, "RuntimeError: x"))
    assert cause(tmp_path, ruled)["evidence"][0]["text"] == "RuntimeError: x"


STEP = "step {:6} | loss {:8.4f} | lr 1.000e-04 | grad norm {:7.3f} | {:9.1f} tok/s | 31.2 GiB\n"
SAME_WIDTH = {
    "steps whose numbers are padded": "".join(STEP.format(10**n, 2.1, 0.9, 12345.6) for n in range(5)),
    "rows of nccl-tests": "".join(
        f"{32 << 5 * n:12d} {8 << 5 * n:13d}     float  sum  -1 {20 + 9 * n:8.1f} {n / 10:7.2f} {n / 5:7.2f}   0\n"
        for n in range(5)
    ),
    "lines that end with where they are from": "".join(
        f"[10:00:0{n}] INFO     {words:<50} {place:>14}\n"
        for n, (words, place) in enumerate((("Loading data", "data.py:31"), ("Building 7B parameters", "model.py:120"),
                                            ("Starting training", "train.py:88"), ("Saving", "ckpt.py:9")))
    ),
}  # fmt: skip


@each_row("rows", SAME_WIDTH.values(), ids=SAME_WIDTH)
def test_rows_of_one_width_are_not_taken_for_lines_that_a_terminal_cut(tmp_path: Path, rows: str) -> None:
    found = cause(tmp_path, f"{rows}srun: error: n2: task 3: Killed\n")
    assert (found["code"], found["nodes"]) == ("rank-crashed", ["n2"])
    assert found["evidence"][0]["line"] == rows.count("\n") + 1


@each_row("width", [72, 80, 100, 120, 132])
def test_lines_of_torch_are_whole_again_at_each_width_below_a_longer_line_of_who_asks(
    tmp_path: Path, width: int
) -> None:
    cut = "".join(
        f"{line[at : at + width]}\n"
        for line in "".join(AT_HALF.format(rank) for rank in (1, 2, 3)).split("\n")
        for at in range(0, len(line), width)
    )
    assert "ALLREDUCE number 1" in cause(tmp_path, f"{'please help with what follows, ' * 6}\n{cut}")["message"]


LAST = "[rank{}]: 2025-03-01 10:{}:00 INFO {}\n"
AT_HALF = (
    "[rank{0}]:[E301 10:30:00.5 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800001 milliseconds "
    "before timing out.\n"
)


def test_a_rank_that_wrote_on_after_the_others_gave_up_is_late(tmp_path: Path) -> None:
    begun = LAST.format(0, "00", "building the index on rank 0")
    gave_up = "".join(AT_HALF.format(rank) for rank in (1, 2, 3))
    found = cause(tmp_path, begun + gave_up + LAST.format(0, 31, "built 30 of 90 shards"))
    assert (found["code"], found["confidence"], found["ranks"]) == ("timeout-straggler", "named", [0])
    assert cause(tmp_path, begun + gave_up)["confidence"] == "narrowed"


@each_row(
    "last", ["util.py:88 saving checkpoint shard 7 of 16", "healthcare_qa shard 17/100", "traffic signal crops 5/90",
             "ModelCheckpoint(monitor=val_loss): writing", "training early exit heads"],
)  # fmt: skip
def test_last_words_of_work_that_sound_like_an_end_are_of_work(tmp_path: Path, last: str) -> None:
    gave_up = "".join(AT_HALF.format(rank) for rank in (1, 2, 3))
    found = cause(tmp_path, LAST.format(0, "00", "building") + gave_up + LAST.format(0, 31, last))
    assert (found["confidence"], found["ranks"]) == ("named", [0])


@each_row("last", ["Received SIGTERM, shutting down", "INFO gpu_monitor: util 100% mem 71 GiB",
                                  "KeyboardInterrupt", "process will exit on signal 15"])  # fmt: skip
def test_last_words_after_the_others_gave_up_that_are_of_no_work_tell_nothing(tmp_path: Path, last: str) -> None:
    begun = LAST.format(0, "00", "building the index on rank 0")
    gave_up = "".join(AT_HALF.format(rank) for rank in (1, 2, 3))
    found = cause(tmp_path, begun + gave_up + LAST.format(0, 31, last).replace("INFO ", ""))
    assert (found["code"], found["confidence"], found["ranks"]) == ("timeout-straggler", "narrowed", [0])


def test_an_error_of_a_rank_before_the_others_gave_up_is_its_own(tmp_path: Path) -> None:
    gave_up = "".join(AT_HALF.format(rank) for rank in (1, 2, 3))
    found = cause(tmp_path, LAST.format(0, "00", "KeyboardInterrupt").replace("INFO ", "") + gave_up)
    assert (found["code"], found["ranks"]) == ("rank-crashed", [0])


GAVE_UP = "".join(AT_HALF.format(rank) for rank in (1, 2, 3))
BLOCKED = "[ 812.1] INFO: task python:4242 blocked for more than 120 seconds.\n"
STILL, BACK = "[ 812.1] nfs: server 10.0.0.9 not responding, still trying\n", "[ 818.1] nfs: server 10.0.0.9 OK\n"


def test_a_file_server_that_does_not_answer_keeps_the_others_waiting(tmp_path: Path) -> None:
    found = cause(tmp_path, STILL + GAVE_UP)
    assert (found["code"], "10.0.0.9" in found["message"]) == ("timeout-straggler", True)
    assert "blocked in the kernel" in cause(tmp_path, BLOCKED + GAVE_UP)["message"]


NFS = "Mar  1 {} {} kernel: nfs: server nas {}\n"
MUTE, OK = "not responding, still trying", "OK"


def test_a_file_server_comes_back_for_one_host_and_for_a_while(tmp_path: Path) -> None:
    text = NFS.format("10:00:00", "n1", MUTE) + NFS.format("10:00:01", "n2", MUTE) + NFS.format("10:01:00", "n1", OK)
    assert cause(tmp_path, text + GAVE_UP)["nodes"] == ["n2"]
    text = NFS.format("09:00:00", "n1", MUTE) + NFS.format("09:00:30", "n1", OK) + NFS.format("10:01:00", "n1", MUTE)
    found = cause(tmp_path, text + GAVE_UP)
    assert (found["nodes"], found["evidence"][0]["line"]) == (["n1"], 3)
    files = {"kern.log": NFS.format("10:00:00", "n1", MUTE), "later.log": NFS.format("10:01:00", "n1", OK)}
    assert "nas" not in first_cause(tmp_path, {**files, "train.log": GAVE_UP})["message"]


def test_a_file_server_that_was_silent_a_day_before_is_no_cause(tmp_path: Path) -> None:
    for time, is_cause in (("10:30:00", False), ("10:31:00", True)):
        text = NFS.format(time, "n1", MUTE).replace("Mar  1", "Feb 28") + GAVE_UP
        assert ("nas" in cause(tmp_path, text)["message"]) is is_cause


def test_a_process_that_is_stuck_as_its_gpu_fell_off_the_bus_is_no_second_cause(tmp_path: Path) -> None:
    (found,) = explained(tmp_path, XID.replace("145", "79").format("Fatal") + BLOCKED + GAVE_UP)["causes"]
    assert found["code"] == "gpu-hw-error"


def test_one_that_came_back_or_of_a_job_at_work_is_no_cause(tmp_path: Path) -> None:
    assert "10.0.0.9" not in cause(tmp_path, STILL + BACK + GAVE_UP)["message"]
    assert accused(explained(tmp_path, STILL + BLOCKED + steps(0, 9))) == []


@each_row(
    ("text", "code"),
    [("Host key verification failed.\n", "peer-unreachable"),
     ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n", "duplicate-gpu")],
)  # fmt: skip
def test_a_login_and_a_gpu_that_are_refused_have_a_meaning(tmp_path: Path, text: str, code: str) -> None:
    assert cause(tmp_path, text)["code"] == code
