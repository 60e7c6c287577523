"""What happened, and what would explain trouble: two answers, of which the second never makes a failure."""

from pathlib import Path

from ncclprobe.logs.reader import read
from tests.log.test_outcome import explained, steps

SLOW = "n0:7:9 [0] NCCL INFO NET/OFI GDR disabled on GDR-supported instance type p5.48xlarge\n"
REFUSED = "n0:7:9 [0] NCCL WARN Bootstrap : no socket interface found\n"


def test_what_only_costs_time_is_a_condition_until_the_user_says_that_the_job_was_slow(tmp_path: Path) -> None:
    report = explained(tmp_path, SLOW, "--exit-code")
    slow = [each for each in report["answers"] if each["when"] == "slow"]
    assert (report["outcome"], report["exit_code"]) == ("unknown", 0)
    assert [(each["kind"], each["known"]) for each in slow] == [("named", False)]
    report = explained(tmp_path, SLOW, "--slow", "--exit-code")
    assert (report["exit_code"], report["answers"][0]["when"], report["answers"][0]["known"]) == (4, "slow", True)


def test_a_failure_is_answered_before_what_only_costs_time(tmp_path: Path) -> None:
    report = explained(tmp_path, SLOW + REFUSED, "--exit-code")
    assert (report["outcome"], report["exit_code"]) == ("failed", 4)
    assert [each["when"] for each in report["answers"]][:1] == ["failed"]


def test_what_the_user_knows_and_no_line_explains_is_unknown(tmp_path: Path) -> None:
    for option in ("--hung", "--slow"):
        report = explained(tmp_path, "n0:7:9 [0] NCCL INFO NCCL version 2.28.9+cuda12.9\n", option, "--exit-code")
        assert report["exit_code"] == 3, option
        assert {(each["kind"], each["known"]) for each in report["answers"] if each["when"] == option[2:]} == {
            ("none", True)
        }, option


def test_a_log_that_proves_success_has_no_conditional_answer(tmp_path: Path) -> None:
    ended = SLOW + steps(0, 9) + "Training completed\n"
    report = explained(tmp_path, ended)
    assert (report["outcome"], report["answers"], report["causes"]) == ("ended-well", [], [])
    assert explained(tmp_path, ended, "--slow", "--exit-code")["exit_code"] == 4


def test_a_line_of_another_layer_brings_the_next_step_of_that_layer_and_not_of_nccl(tmp_path: Path) -> None:
    """Who looks after a step of Slurm, or after UCX, is not helped by NCCL's lines."""
    rows = {
        "slurmstepd: error: frob of the step went odd\n": "the scheduler",
        "[1700000000.1] [n0:7 :0] ib_frob.c:12 UCX  ERROR uct_frob() failed: odd\n": "UCX",
    }
    wrong = []
    for line, layer in rows.items():
        cause = explained(tmp_path, f"starting\n{line}", "--failed")["causes"][0]
        steps_of_nccl = [each for each in cause["collect"] if "NCCL_DEBUG=" in each]
        if layer not in cause["message"] or not cause["fix"].startswith("check ") or steps_of_nccl:
            wrong.append((line, cause))
    assert wrong == []
    cause = explained(tmp_path, "n0:7:9 [0] frob.cc:9 NCCL WARN Frob of 7 went odd\n", "--failed")["causes"][0]
    assert [each for each in cause["collect"] if "NCCL_DEBUG=INFO" in each]


WARNED = (
    "n0:7:9 [0] frob.cc:9 NCCL WARN NET/Frob Could not find any optimal frob\nn0:7:9 [0] NCCL INFO Using network Frob\n"
)
WRAPPED = (
    "slurmstepd: error: pyxis: container start failed with error code: 1\n"
    "slurmstepd: error: pyxis: printing enroot log file:\n"
    "slurmstepd: error: pyxis:     frobctl: failed to open slot 3: not mounted\n"
    "srun: error: Task launch for StepId=96.0 failed on node n2: Invalid job credential\n"
)


def test_a_line_that_no_rule_knows_is_shown_as_a_condition_where_nothing_failed(tmp_path: Path) -> None:
    report = explained(tmp_path, WARNED, "--exit-code")
    cause = report["causes"][0]
    assert (report["outcome"], report["exit_code"], cause["severity"]) == ("unknown", 0, "note")
    assert "optimal frob" in cause["evidence"][0]["text"]
    assert [(each["kind"], each["known"]) for each in report["answers"] if each["when"] == "failed"] == [
        ("line", False)
    ]
    report = explained(tmp_path, WARNED, "--failed", "--exit-code")
    assert (report["outcome"], report["exit_code"], report["causes"][0]["severity"]) == ("failed", 3, "fail")


def test_what_a_wrapper_repeats_is_no_cause_beside_a_line_of_what_it_wraps(tmp_path: Path) -> None:
    """Slurm's refusal is a named cause by itself; what the container said before it says why."""
    alone = explained(tmp_path, WRAPPED.splitlines(keepends=True)[-1], "--exit-code")
    assert (alone["causes"][0]["confidence"], alone["exit_code"]) == ("named", 4)
    report = explained(tmp_path, WRAPPED, "--exit-code")
    assert "not mounted" in report["causes"][0]["evidence"][0]["text"]
    assert (report["causes"][0]["confidence"], report["exit_code"]) == ("named", 4)
    assert any("Slurm" in each["message"] for each in report["causes"][0]["consequences"])


def test_what_another_rank_says_contradicts_no_cause(tmp_path: Path) -> None:
    text = "[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n"
    other = "[rank1]: [1.2] [n1:7:0] ib_frob.c:3 UCX  ERROR frob of slot 3 not found\n"
    assert explained(tmp_path, other + text)["causes"][0]["code"] == "oom"


def init(rank: int, nranks: int = 2) -> str:
    """NCCL's line of a rank, on a host of its own, whose communicator is complete."""
    return f"n{rank}:7:9 [0] NCCL INFO comm 0x{rank} rank {rank} nranks {nranks} cudaDev 0 busId 7000 - Init COMPLETE\n"


def using(first: str, second: str) -> str:
    line = "n{0}:7:7 [0] NCCL INFO Bootstrap : Using {1}:10.0.0.{0}<0>\n"
    return line.format(0, first) + line.format(1, second)


INFO = "n0:7:9 [0] NCCL INFO "
CONDITIONS = {
    "a virtual interface beside a real one": (using("eth0", "veth1a2b"), "hung", "iface-wrong-veth"),
    "workers too many": (
        "INFO: Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "
        "(world_size=4, worker_count=8, timeout=0:30:00)\n",
        "hung",
        "world-size-mismatch",
    ),
    "IB disabled": (f"{INFO}NCCL_IB_DISABLE set by environment to 1.\n", "slow", "slow-socket-fallback"),
    "MNNVL off": (f"{INFO}NCCL_MNNVL_ENABLE set by environment to 0.\n", "slow", "nccl-setting"),
    "P2P off": (f"{INFO}NCCL_P2P_DISABLE set by environment to 1.\n", "slow", "nccl-setting"),
    "GPUDirect off": (f"{INFO}NCCL_NET_GDR_LEVEL set by environment to LOC\n", "slow", "gdr-off"),
    "GPUDirect one way": (f"{INFO}NCCL_NET_GDR_READ set by environment to 0.\n", "slow", "gdr-off"),
    "libibverbs missing": (
        f"{INFO}Failed to open libibverbs.so[.1]\n{INFO}Using network Socket\n",
        "slow",
        "libibverbs-missing",
    ),
    "EFA without provider": (
        f"{INFO}NET/OFI No eligible providers were found\n{INFO}Using network Socket\n",
        "slow",
        "efa-no-provider",
    ),
    "sockets": (f"{INFO}NET/IB : No device found.\n{INFO}Using network Socket\n", "slow", "slow-socket-fallback"),
    "mixed links": (
        f"{INFO}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n",
        "slow",
        "ib-mixed-link-layer",
    ),
}


def test_what_would_explain_trouble_is_said_though_no_line_speaks_of_any(tmp_path: Path) -> None:
    wrong = {}
    for name, (text, when, code) in CONDITIONS.items():
        report = explained(tmp_path, text + init(0) + init(1), "--exit-code")
        told = [(each["when"], each["kind"], each["known"], each["code"]) for each in report["answers"]]
        if (when, "named", False, code) not in told or report["outcome"] != "unknown":
            wrong[name] = told
        asked = explained(tmp_path, text + init(0) + init(1), f"--{when}", "--exit-code")
        if (asked["exit_code"], asked["answers"][0]["code"]) != (4, code):
            wrong[f"{name}, asked"] = asked["answers"]
    assert wrong == {}
    assert len(CONDITIONS) >= 11


NO_CONDITION = {
    "interfaces alike": using("eth0", "eth0"),
    "all virtual": using("veth1", "veth2"),
    "workers as wanted": CONDITIONS["workers too many"][0].replace("count=8", "count=4"),
    "a setting that costs nothing": f"{INFO}NCCL_P2P_LEVEL set by environment to NVL\n",
    "sockets on one host": f"{INFO}NET/IB : No device found.\n{INFO}Using network Socket\n",
    "links alike": f"{INFO}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>\n",
}


def test_what_costs_nothing_is_no_condition(tmp_path: Path) -> None:
    wrong = {}
    for name, text in NO_CONDITION.items():
        ranks = init(0, 1) if "one host" in name else init(0) + init(1)
        if named := [each for each in explained(tmp_path, text + ranks)["answers"] if each["kind"] == "named"]:
            wrong[name] = named
    assert wrong == {}
    assert len(NO_CONDITION) >= 6


DUMPED = (
    "[rank0]:[E804 23:05:54.817424543 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a "
    "dump signal due to a collective timeout from  rank 5 and we will try our best to dump the debug info.\n"
)


def test_a_rank_that_heard_of_a_timeout_is_not_the_one_that_had_it(tmp_path: Path) -> None:
    cause = explained(tmp_path, DUMPED)["causes"][0]
    assert (cause["ranks"], cause["confidence"]) == ([5], "unknown")
    assert "rank 5 reports" in cause["message"]
    assert "log of rank 5" in cause["fix"]


NOT_THE_LAST = {
    "Fatal error:\nThe grid of frobs needs -npme\nMPI_ABORT was invoked on rank 0 in communicator X\n": "-npme",
    "2025-03-04 F frob.h:80] UNAVAILABLE: tasks are unhealthy (stopped sending heartbeats): /job:w/task:2.\nAborted "
    "(core dumped)\n": "/task:2",
    "1 |FROB_ERROR| frob.c:9 open: no suitable provider\nterminate called after throwing an instance of 'f::e'\n  "
    "what():  frob: init: failed to begin\n": "no suitable provider",
    "x.cu:9: f(): block: [1,0,0], thread: [3,0,0] Assertion `i < n` failed.\n[rank2]: Traceback (most recent call "
    "last):\n[rank2]: RuntimeError: CUDA error: device-side assert triggered\n": "`i < n`",
    "Error: failed to run torchrun train.py on h2, exception: Frob.\nh2: Permission denied (publickey,password).\n":
    "publickey",
    "[Error] [frob.plugin] slot 5: not mounted\nSegmentation fault (core dumped)\n": "not mounted",
}  # fmt: skip
"""Logs whose last line says how they ended, and another one why."""


ENDED_BY_OTHERS = {
    "step 7 loss 2\n=>> PBS: job killed: walltime 86412 exceeded limit 86400\n": "ended-from-outside",
    "step 7 loss 2\nTERM_RUNLIMIT: job killed after reaching LSF run time limit.\n": "ended-from-outside",
    "step 7 loss 2\nTERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n": "oom",
    'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n':
    "gpu-isolation",
    "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.\n":
    "gpu-isolation",
    "".join(f"n1:7:9 [0] NCCL INFO socketPollConnect: connect returned No route to host, retrying ({n}/34)\n"
            for n in range(30, 34)): "port-blocked",
    "step 7 loss 2\nlauncher: rank 2 crashed with exit code -11.\n": "rank-crashed",
    "distributed.nanny.memory - WARNING - Worker exceeded 95% memory budget. Restarting\n": "oom",
    "E0102 03:04:05.678901 7 pool.cpp:9] slice failed (local_nic: mlx5_1, retry_cnt: 0): transport retry counter "
    "exceeded\n": "ib-link-error",
    '9s   Warning   Failed   kubelet   Failed to pull image "zeta:v9": rpc error: not found\n': "rank-crashed",
    "WARN: device mlx5_1 cannot allocate buffer on the specified memory type. Skipping\nabort\n": "gdr-off",
    "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'n4_8_0' has failed to shutdown the "
    "rendezvous 'none' due to an error of type RendezvousConnectionError.\n": "master-unreachable",
}  # fmt: skip


def test_what_other_schedulers_and_runtimes_say_is_a_cause(tmp_path: Path) -> None:
    wrong = {}
    for text, code in ENDED_BY_OTHERS.items():
        found = explained(tmp_path, text)["causes"]
        if not found or code not in (found[0]["code"], *found[0]["could_be"]):
            wrong[text] = found
    assert wrong == {}
    assert len(ENDED_BY_OTHERS) >= 12


def test_how_a_process_ended_does_not_stand_before_why(tmp_path: Path) -> None:
    wrong = {}
    for text, words in NOT_THE_LAST.items():
        first = explained(tmp_path, text)["causes"][0]["evidence"][0]["text"]
        if words not in first:
            wrong[words] = first
    assert wrong == {}
    assert len(NOT_THE_LAST) >= 6


def test_a_line_of_torch_that_was_cut_within_parentheses_is_whole_again(tmp_path: Path) -> None:
    head = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77,\n"
    rest = "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800090\nmilliseconds.\n"
    assert "ALLREDUCE number 77" in explained(tmp_path, head + rest)["causes"][0]["message"]
    (event,) = read([("a.log", [f"{head}[Rank 1] is at work\n".encode()])]).events
    assert event.text.endswith("SeqNum=77,")


LEFT = (
    "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'n4_882_0' has failed to shutdown the "
    "rendezvous '2f1c' due to an error of type RendezvousConnectionError.\n"
)


def test_a_store_that_was_reached_before_is_not_one_that_no_port_leads_to(tmp_path: Path) -> None:
    cause = explained(tmp_path, steps(0, 9) + LEFT)["causes"][0]
    assert (cause["code"], cause["confidence"]) == ("rank-crashed", "narrowed")
    assert "--rdzv-endpoint" in cause["fix"]
    assert "port" not in cause["message"]


NOT_THE_JOBS = {
    "a host that Slurm cannot start on": "srun: error: Task launch for StepId=9.0 failed on node n1: Timed out\n",
    "a job that made way": "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04 DUE TO PREEMPTION ***\n",
    "Ray that lost a process": "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing.\n",
    "an exception of CUDA": 'Traceback (most recent call last):\n  File "x.py", line 3, in f\n'
    "RuntimeError: No CUDA GPUs are available\n",
}


def test_the_job_is_at_fault_only_by_what_a_line_says_of_it(tmp_path: Path) -> None:
    wrong = {}
    for name, text in NOT_THE_JOBS.items():
        cause = explained(tmp_path, text, "--failed")["causes"][0]
        if cause["blame"] == "job" or "same rank, and the peer" in cause["fix"]:
            wrong[name] = cause
    assert wrong == {}
    assert len(NOT_THE_JOBS) >= 4
