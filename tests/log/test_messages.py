"""The table of messages: every line of it is found again, and its meaning is what `explain` makes of the line."""

import re
from collections.abc import Mapping
from pathlib import Path

from ncclprobe.checks import log as rules
from ncclprobe.checks.log.known import harmless
from ncclprobe.engine.diagnose import LEFT, every_check
from ncclprobe.engine.job_files import judged
from ncclprobe.logs import messages
from ncclprobe.logs.causes import causes
from ncclprobe.logs.job_log import JobLog
from ncclprobe.logs.messages import MessageRow
from ncclprobe.logs.ranks import joined
from ncclprobe.logs.reader import Reader
from ncclprobe.model.causes import Cause
from ncclprobe.model.snapshot import Job
from tests.each_row import each_row, some
from tests.log.test_examples import explained

ROWS = list(messages.rows())
CHECKS = [check for check in every_check(LEFT) if check.cause or check.id == "log.unexplained"]
READER = Reader([sign for check in CHECKS if check.cause for sign in check.cause.signs])
CODES = {*re.findall(r"``([a-z0-9-]+)``", rules.__doc__ or "")}
HELD = {
    "rank": "1", "peer": "3", "number": "7", "address": "10.0.0.7<4321>", "device": "mlx5_0", "error": "Frobnicated",
    "text": "eth0", "host": "n7",
}  # fmt: skip
MOST_WORDS = 10
"""Eight, and one or two more if eight match a line of another meaning."""


def whole(logs: Mapping[str, str]) -> JobLog:
    """Return logs as they are read in earnest: with the signs of all checks, those of the table among them."""
    return joined([READER.read_one(name, [text.encode()]) for name, text in logs.items()])


def named(text: str) -> tuple[Cause, ...]:
    """Return the causes of a log, with those that the table knows."""
    rules_ = {check.key: check.cause for check in CHECKS if check.cause}
    return causes(judged(CHECKS, {JobLog: whole({"a.log": text})}, Job()), rules_)


def written(row: MessageRow) -> str:
    """Return a line of a log that holds this message."""
    text = re.sub(r"\{([a-z]+)\}", lambda found: HELD[found[1]], row.text)
    head = 'Traceback (most recent call last):\n[rank0]:   File "x.py", line 3, in f\n[rank0]: '
    if row.level == "FATAL":
        alone = READER.any.holds(text.encode())
        return f"{text}\n" if alone else f"[rank0]: {head}RuntimeError: {text}\n"
    if row.project in ("nccl", "ofi"):
        return f"n1:7:9 [0] {row.place}:9 NCCL {row.level} {text}\n"
    if row.level != "RAISED":
        return f"[rank0]:[{row.level[0]}1122 10:00:00.5 x.py:7] {text}\n"
    return f"[rank0]: {head}torch.distributed.{row.then}: {text}\n"


def test_every_message_is_found_by_a_line_that_holds_it() -> None:
    for row in some(ROWS):
        text = re.sub(r"\{([a-z]+)\}", lambda found: HELD[found[1]], row.text)
        found = messages.message(text)
        assert found
        assert len("".join(messages.parts(found.row.text))) >= len("".join(messages.parts(row.text)))


def test_every_meaning_is_of_a_known_form_and_no_text_stands_twice() -> None:
    for row in ROWS:
        kind, *rest = row.meaning.split()
        assert kind in ("cause", "consequence", "symptom", "harmless", "aside", "?")
        assert set(rest) <= (CODES if kind == "cause" else {"peer"}), row
        assert bool(rest) >= (kind == "cause")
    keys = [(row.project, row.level, row.text) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_a_text_keeps_few_words_and_no_exception_is_listed_only_because_it_ends_a_rank() -> None:
    lengths = [len(re.findall(r"\S*[A-Za-z0-9]\S*", re.sub(r"\{[a-z]+\}", " ", row.text))) for row in ROWS]
    assert len(ROWS) > 1500
    assert max(lengths) <= MOST_WORDS
    assert sum(length > MOST_WORDS - 2 for length in lengths) <= len(ROWS) // 100
    assert not [row.text for row in ROWS if (row.level, row.meaning) == ("RAISED", "cause rank-crashed")]


def test_a_text_is_found_whatever_stands_in_its_gaps() -> None:
    row = next(row for row in ROWS if row.text.count("{text}") > 2 and row.level == "WARN")
    filled = row.text.replace("{text}", "several other words").format_map(HELD)
    found = messages.message(filled)
    assert found
    assert found.row == row
    assert messages.message(" ".join(reversed(filled.split()))) is None


def test_what_says_why_in_the_table_is_named_by_a_check_or_by_the_table_itself() -> None:
    """Another release's wording than those of a check's signs is found all the same."""
    causes = [row for row in ROWS if row.meaning.startswith("cause") and row.level != "INFO"]
    log = whole({f"{number}.log": written(row) for number, row in enumerate(causes)})
    said: dict[int, set[str]] = {}
    for verdict in judged(CHECKS, {JobLog: log}, Job()):
        rule = next(check.cause for check in CHECKS if check.key == verdict.key)
        for finding in verdict.findings:
            if at := finding.occurrence:
                said.setdefault(at.stream, set()).update(at.codes or ((rule.code,) if rule and rule.code else ()))
    wrong = [(row.text, said.get(n)) for n, row in enumerate(causes) if not {*row.meaning.split()} & said.get(n, set())]
    assert not wrong


def test_no_harmless_message_is_a_cause() -> None:
    rows = [row for row in ROWS if row.meaning in ("harmless", "aside") and row.level != "INFO"]
    log = whole({f"{number}.log": written(row) for number, row in enumerate(rows)})
    assert all(harmless(event) for event in log.events if event.level in ("WARN", "ERROR"))


@each_row(
    ("text", "level", "meaning"),
    [
        ("Call to ibv_create_qp failed with error Cannot allocate memory errno 12", "WARN", "symptom"),
        ("NCCL_WORK_FIFO_BYTES=3 is being ignored because it is not a power of 2.", "WARN", "harmless"),
        ("NET/OFI what no release has said", "WARN", "symptom"),
        ("NET/OFI Use of OFI_NCCL_RDMA_MAX_POSTED_BOUNCE_BUFFERS is deprecated.", "WARN", "harmless"),
        ("RuntimeError: [../gloo/gloo/transport/tcp/pair.cc:7] connect [10.0.0.7]:4: x", "EXCEPTION", "symptom peer"),
    ],
)
def test_a_line_has_the_meaning_of_the_message_with_most_fixed_text(text: str, level: str, meaning: str) -> None:
    found = messages.said(text, level)
    assert found
    assert found.row.meaning == meaning


@each_row(
    ("line", "codes"),
    [
        (
            "NET/OFI Unable to register memory (type = 2) for device 0. RC: -12, Error: Cannot allocate memory",
            ("memlock",),
        ),
        ("NET/OFI Couldn't create domain. RC: -12, ERROR: Cannot allocate memory", ("memlock", "oom")),
        ("NET/OFI Couldn't create domain. RC: -22, ERROR: Invalid argument", ()),
        (
            "[/x/gloo/transport/tcp/pair.cc:7] connect [10.0.0.7]:4: Connection refused",
            ("rank-crashed", "peer-unreachable"),
        ),
    ],
)
def test_the_error_that_a_failed_call_names_says_what_its_text_does_not(line: str, codes: tuple[str, ...]) -> None:
    log = whole({"a": f"n1:7:9 [0] x.cc:1 NCCL WARN {line}\n[rank0]: NCCL failure\n"})
    rules_ = {check.key: check.cause for check in CHECKS if check.cause}
    (found,) = causes(judged(CHECKS, {JobLog: log}, Job()), rules_)
    assert found.could_be == (codes if len(codes) > 1 else ())
    assert found.code == (codes or ("unknown",))[0]


def test_every_sign_of_the_table_is_of_one_of_its_messages() -> None:
    (signs,) = [check.cause.signs for check in CHECKS if check.id == "log.known-message" and check.cause]
    assert signs
    assert all(any(sign in part for row in ROWS for part in (row.place, *messages.parts(row.text))) for sign in signs)


@each_row(
    ("text", "level"),
    [
        ("Something new went wrong", "WARN"),
        ("Call to ibv_create_qp failed", "INFO"),
        ("failed Call to ibv_create_qp", "WARN"),
        ("FlashAttention is not available.", "WARN"),
    ],
)
def test_other_lines_have_none(text: str, level: str) -> None:
    assert messages.said(text, level) is None


def test_holes_are_read_by_their_kinds() -> None:
    found = messages.message("[Proxy Service 5] Failed to execute operation Connect from rank 3, retcode 6")
    assert found
    assert (found.held("rank"), found.held("peer"), found.held("address")) == ("5", "3", "")


def test_a_line_as_long_as_any_is_looked_up_in_a_moment() -> None:
    assert messages.message("Call to " * 500 + "from rank " * 500) is None


def test_the_line_of_no_known_meaning_says_who_wrote_it_and_what_follows(tmp_path: Path) -> None:
    (found,) = explained(
        whole({"a": 'n1:7:9 [0] x.cc:1 NCCL WARN Unrecognized element token "Rng" when parsing "Rng"\n'})
    )
    assert (found.code, found.doctor) == ("nccl-setting", "env.forced-algo")


def test_what_torch_repeats_of_nccls_last_error_has_the_meaning_of_the_warning() -> None:
    last = "Last error:\nnvmlDeviceGetHandleByIndex(3) failed: Unknown Error\n"
    log = whole({"a": f"ncclSystemError: System call failed.\n{last}step 7: Last error: none\nnvml() failed: x\n"})
    assert [(e.line, e.level, e.text[:4]) for e in log.events] == [
        (1, "EXCEPTION", "nccl"), (2, "", "Last"), (3, "WARN", "nvml"), (4, "", "step"), (5, "", "nvml"),
    ]  # fmt: skip
    (found,) = causes(judged(CHECKS, {JobLog: log}, Job()), {check.key: check.cause for check in CHECKS if check.cause})
    assert found.could_be == ("cuda-driver-mismatch", "gpu-isolation", "gpu-hw-error")


# messages of frameworks


RAISED = 'Traceback (most recent call last):\n  File "/usr/lib/a.py", line 3, in f\n    g()\n'


@each_row(
    ("log", "codes"),
    [
        (
            f"(EngineCore_DP0 pid=77) {RAISED}ValueError: Free memory on device cuda:0 (12.18/23.56 GiB) on "
            "startup is less than desired GPU memory utilization (0.92, 21.67 GiB). Decrease GPU "
            "memory utilization\nERROR 06-30 13:53:19 [core.py:515] EngineCore failed to start.\n"
            f"{RAISED}RuntimeError: Engine core initialization failed. See root cause above. Failed core "
            "proc(s): {}\n",
            ("oom",),
        ),
        (
            f"{RAISED}RuntimeError: Engine core initialization failed. See root cause above. Failed core "
            "proc(s): {}\n",
            (),
        ),
        (
            f"[2025-03-17 17:15:55 TP1] Scheduler hit an exception: {RAISED}ValueError: TP rank 1 could "
            "finish the model loading, but there are other ranks that didn't finish loading. It is "
            "likely due to unexpected failures (e.g., OOM)\n"
            "[2025-03-17 17:15:56] Received sigquit from a child process. It usually means the child "
            "failed.\n",
            (),
        ),
        (
            "pdsh@head: worker-1: ssh exited with exit code 255\n",
            ("peer-unreachable",),
        ),
        (
            "pdsh@head: worker-1: ssh exited with exit code 1\n",
            (),
        ),
        (
            "[WARNING] [rank_monitor_server] [Cycle 0] Did not get subsequent heartbeat. Waited 60.00 seconds.\n",
            (),
        ),
        (
            "grad_norm across the workers:\nrank   0 = 43.87894113\nrank   1 = 36.76721862\n",
            (
                "wrong-data",
                "collective-desync",
            ),
        ),
        (
            f"{RAISED}FloatingPointError: Fatal error: gradients are inconsistent between workers. Try "
            "--ddp-backend=legacy_ddp.\n",
            (
                "wrong-data",
                "collective-desync",
            ),
        ),
        (
            "[rank: 1] Child process with PID 4711 terminated with code 1. Forcefully terminating "
            "all other processes to avoid zombies\n",
            ("rank-crashed", "oom"),
        ),
        (
            "[TRT-LLM] [E] Executor worker died during initialization.\n"
            f"{RAISED}RuntimeError: Executor worker died during initialization\n",
            ("rank-crashed",),
        ),
        (
            "[TRT-LLM] [E] Hang detected after 300 seconds.\n"
            "[TRT-LLM] [E] HangDetector: self-SIGKILL; relying on the launcher to propagate to peer ranks.\n",
            (),
        ),
        (
            f"{RAISED}TimeoutError: server launch failed\n",
            (),
        ),
        (
            f"{RAISED}ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
            "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of "
            "file.\n",
            ("rank-crashed", "oom"),
        ),
        (
            "[2025-06-01 10:00:00,000 E 77 99] core_worker.cc:1: Shutting down the core worker "
            "because the local raylet failed. Check out the raylet.out log file.\n",
            (),
        ),
        (
            "[1,3]<stderr>:[2024-01-06 11:41:34.489: E horovod/common/gloo/http_store.cc:96] HTTP "
            "GET request failed too many times, aborting. See exception message above.\n",
            (
                "master-unreachable",
                "rank-crashed",
            ),
        ),
        (
            f"{RAISED}horovod.runner.common.util.timeout.TimeoutException: Timed out waiting for tasks to "
            "start. Please check connectivity between servers. You may need to increase\n",
            ("peer-unreachable",),
        ),
        (
            "F0322 10:00:00.000000 77 rendezvous.cc:127] [id=7] Termination timeout for `first call "
            "to collective` of 40 seconds exceeded. Exiting to ensure a consistent program state. "
            "Expected 8 threads to join the rendezvous, but only 7\n",
            (
                "timeout-straggler",
                "rank-crashed",
            ),
        ),
        (
            f"{RAISED}jax.errors.JaxRuntimeError: ABORTED: /job:jax_worker/replica:0/task:3 unexpectedly "
            "tried to connect with a different incarnation. It has likely restarted.\n",
            ("rank-crashed",),
        ),
        (
            "(LLMRayActor pid=90738, ip=172.19.24.110) mlx5: host_unknown: got completion with "
            "error:\n(LLMRayActor pid=90738, ip=172.19.24.110) 00000000 00000000 00000000 00000000\n",
            (),
        ),
        (
            "[1038619.695161] infiniband efa_0: Failed to register mr [-12]\n",
            (
                "kernel-pin-failure",
                "memlock",
            ),
        ),
        (
            "[1038619.6951] infiniband efa_0: Failed to process command REG_MR (opcode 7) comp_status 1 err -12\n",
            (
                "kernel-pin-failure",
                "memlock",
            ),
        ),
        (
            ":0:rocdevice.cpp            :2984: 12.3 us: [pid:7 tid:0x7f] Callback: Queue "
            "0x7f78cb400000 aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation "
            "resulted in a hardware exception. code: 0x1016\n",
            (
                "rank-crashed",
                "gpu-hw-error",
            ),
        ),
        (
            "Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.\n",
            ("rank-crashed",),
        ),
        (
            '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 3, in f\n'
            "[rank1]: RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS "
            "function error: HcclAllreduce, error code is 6\n"
            "[rank1]: EI0006: [PID: 7] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did "
            "not send the data in time. Please check the reason for the rank being stuck\n",
            (),
        ),
        (
            "srun: error: timeout waiting for task launch, started 7 of 8 tasks\n",
            (
                "peer-unreachable",
                "rank-crashed",
            ),
        ),
        (
            "srun: error: Timed out waiting for job step to complete\n",
            (),
        ),
    ],
)
def test_what_a_framework_says_of_a_failure_is_its_cause_or_a_victims_word(log: str, codes: tuple[str, ...]) -> None:
    first, *_ = named(log)
    assert first.could_be == (codes if len(codes) > 1 else ())
    assert first.code == (codes or ("unknown",))[0]


@each_row(
    "log",
    [
        (
            "WARNING 06-30 13:53:19 [custom_all_reduce.py:144] Custom allreduce is disabled because "
            "your platform lacks GPU P2P capability or P2P test failed. To silence this warning, "
            "specify disable_custom_all_reduce=True explicitly.\n"
            "INFO 06-30 13:53:59 [launcher.py:37] Route: /v1/completions, Methods: POST\n"
        ),
        (
            "Prompt: 'EngineCore failed to start.', Generated text: ' See root cause above. Failed core proc(s)'\n"
            "| 3 | TP=4 | Free memory on device (7.2/8.0 GiB) on startup is less than desired GPU "
            "memory utilization | failed |\n"
        ),
        (
            "[2025-03-17 17:15:55] Ignore import error when loading sglang.srt.models.phi4mm: No "
            "module named 'backoff'\n"
            "[2025-03-17 17:15:58] WARNING: The memory capacity is unbalanced. Some GPUs may be "
            "occupied by other processes.\n"
            "[2025-03-17 17:16:55] The server is fired up and ready to roll!\n"
        ),
        (
            "[2024-01-06 11:41:34,489] [WARNING] [runner.py:217:fetch_hostfile] Unable to find "
            "hostfile, will proceed with training with local resources only.\n"
            "ssh -o PasswordAuthentication=no worker-1 hostname\n"
        ),
        (
            "WARNING:megatron.core.rerun_state_machine:Rank 3, node n7, device 3, iteration 7: "
            "Unexpected result 9.1 (message='loss is spiky')\n iteration 7/ 9 | lm loss: 9.1\n"
            " iteration 8/ 9 | lm loss: 3.1\n iteration 9/ 9 | lm loss: 3.0\n"
        ),
        (
            "2024-01-06 11:41:34 | WARNING | fairseq.trainer | attempting to recover from OOM in "
            "forward/backward pass\n"
            "2024-01-06 11:41:39 | INFO | train_inner | epoch 001: 7 / 9 loss=3.1, gnorm=43.8\n"
        ),
        (
            "The `srun` command is available on your system but is not used. HINT: If your intention "
            "is to run Lightning on SLURM, prepend your python command with `srun`\n"
            "`Trainer.fit` stopped: `max_epochs=1` reached.\n"
        ),
        (
            "Detected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this "
            "can cause the process to hang.\n{'train_runtime': 7.1}\n"
        ),
        "[TRT-LLM] [I] Hang detector enabled, timeout 300 seconds\n",
        ("response: the server launch failed, since RuntimeError: server launch failed\nstep:7 - actor/loss:0.1\n"),
        (
            "[2025-06-01 10:00:00,000 E 77 99] core_worker_process.cc:837: Failed to establish "
            "connection to the metrics exporter agent. Metrics will not be exported. Exporter agent "
            "status: RpcError: Running out of retries\nTraining finished successfully\n"
        ),
        ("[1,3]<stderr>:[2024-01-06 11:41:34.489: I horovod/common/operations.cc:681] Horovod initialized\n"),
        (
            "E0322 10:00:00.000000 77 rendezvous.cc:92] [id=7] This thread is unstuck waiting for "
            "`first call` after 10s. All threads joined the rendezvous on time however the leader "
            "took long time to complete it.\nstep 7 loss 2\n"
        ),
        (
            "[    9.687627] infiniband efa_0: IB device registered\n"
            "[    9.6] mlx5_core 0000:5e:00.0: E-Switch: Total vports 1\n"
        ),
        ":3:rocdevice.cpp            :468 : 12.3 us: [pid:7 tid:0x7f] Initializing HSA stack.\n",
        ("[rank1]: HCCL_CONNECT_TIMEOUT is 120; a socket times out after it, see EI0006\nstep 7 loss 2\n"),
        ("bitsandbytes was compiled without GPU support. 8-bit optimizers and GPU quantization are unavailable.\n"),
        (
            "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
            "srun: Step created for StepId=7.0\n"
        ),
    ],
)
def test_what_a_healthy_framework_prints_is_no_cause(log: str) -> None:
    assert not named(log)


@each_row(("head", "level"), [("[n1:7:0] ib_log.c:246 UCX ERROR mlx5_0: ", ""), ("", "ERROR")])
def test_a_call_that_another_library_names_is_no_word_of_nccls(head: str, level: str) -> None:
    assert messages.said("ibv_create_cq() failed: Cannot allocate memory", "WARN")
    assert messages.said(f"{head}ibv_create_cq() failed: Cannot allocate memory", level) is None
