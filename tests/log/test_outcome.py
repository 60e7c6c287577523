"""What happened to a job, and the evidence against a line that only sounds like a failure."""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import explain
from tests.each_row import each_row

WATCHDOG = (
    "[rank0]:[E1122 10:00:00.5 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600001 milliseconds "
    "before timing out.\n"
)
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 3, in f\n'
CAUGHT = "RuntimeError caught: CUDA out of memory. Tried to allocate 12.00 GiB\n"
CLOSING = "2026-11-20 08:20:00 INFO train: training finished after 90 iterations\n"


def steps(first: int, last: int) -> str:
    return "".join(f"iteration {step:8d}/ 100 | loss 2.1\n" for step in range(first, last))


def explained(folder: Path, text: str, *options: str) -> dict[str, Any]:
    (folder / "train.log").write_text(text)
    report = folder / "report.json"
    explain.main([str(folder / "train.log"), "--json", str(report), "-q", *options])
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def accused(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The causes of a failure that is known to be one: no line that would only explain it if there was one."""
    return [each for each in report["causes"] if each["severity"] != "note"]


WELL = {
    "a size that did not fit was tried": f"{CAUGHT}batch size 256 fits\n{steps(0, 9)}exit code 0\n",
    "an error was caught between steps": steps(0, 5) + CAUGHT + steps(5, 9) + CLOSING,
    "a sample speaks of a crash": steps(0, 5) + 'sample: "Segmentation fault (core dumped)"\n' + steps(5, 9) + CLOSING,
    "a sample is a traceback": f"{steps(0, 5)}{TRACE}ZeroDivisionError: division by zero\n{steps(5, 9)}{CLOSING}",
    "a library warned": f"n1:7:7 [0] search.cc:9 NCCL WARN Could not find a path for pattern 4\n{steps(0, 9)}{CLOSING}",
    "a logger has errors": f"ERROR mlflow: could not reach the server\n{steps(0, 9)}Training completed in 3 h\n",
    "a benchmark wrote its result": f"{steps(0, 9)}+ ret_code=0\n+ set +x\nRESULT,TRANSLATION,4727,2026-01-02\n",
    "a logger prints samples": f"{steps(0, 9)}2026-01-02,03:04:05 | INFO | 'RuntimeError: CUDA out of memory.'\n"
    "2026-01-02,03:04:09 | INFO | Done training.\n",
    "an actor was started anew": f"{steps(0, 5)}(raylet) A worker died or was killed while executing a task by an "
    f"unexpected system error.\n{steps(5, 9)}{CLOSING}",
    "nccl-tests found no wrong value": "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 361.2\n",
}


@each_row("text", WELL.values(), ids=WELL)
def test_a_job_that_ended_well_has_no_cause_whatever_its_lines_sound_like(tmp_path: Path, text: str) -> None:
    report = explained(tmp_path, text, "--exit-code")
    assert (report["outcome"], report["causes"], report["exit_code"]) == ("ended-well", [], 0)
    assert report["ended_well"][0]["line"]


OPEN = {
    "a server answered": 'world_size=2\n10.0.0.1 - - [02/Jan/2026 08:11:53] "POST /generate HTTP/1.1" 200 -\n',
    "a program came to an exit": f"{steps(0, 9)}[rank0]:[W Pg.cpp:9] destroy_process_group() was not called before "
    "program exit\n",
    "a validation finished": f"world_size=2\n{steps(0, 5)}Validation run finished in 3.2 s\n{steps(5, 9)}",
    "the part before the last steps finished": f"world_size=2\n{steps(0, 5)}Training run completed\n{steps(5, 9)}",
}


@each_row("text", OPEN.values(), ids=OPEN)
def test_what_does_not_end_a_job_is_no_good_end(tmp_path: Path, text: str) -> None:
    report = explained(tmp_path, text, "--exit-code")
    assert (report["outcome"], report["causes"]) == ("unknown", [])


FAILED = {
    "the script says that the job is over": WATCHDOG + "Job finished at Mon Nov 23 10:00:00\n",
    "standard output was written in blocks": f"{TRACE}FooError: x\n{steps(0, 9)}Job finished\n",
    "a block ended in a line": f"{steps(0, 9)}iteration 9{TRACE}FooError: x\n 0/100\n{steps(10, 19)}Job finished\n",
    "srun saw a task fail": f"{steps(0, 9)}srun: error: n3: task 3: Exited with exit code 1\nJob finished\n",
    "a rank failed after the end of another": f"{CLOSING}[rank1]: {TRACE}[rank1]: FooError: x\n",
    "a worker's wrapper refers to what it does not show": f"{steps(0, 9)}{TRACE}RuntimeError: see root cause above\n",
    "values are wrong": "# Out of bounds values : 34 FAILED\n# Avg bus bandwidth    : 361.2\n",
    "a program aborted": f"{CLOSING}terminate called after throwing an instance of 'foo'\n  what():  bar\n",
    "a launcher's exit code": f"{steps(0, 9)}[launch.py:7] ['python', 'x.py'] exits with return code = 1\n",
    "another launcher's": f"{steps(0, 9)}worker 3 exited with code 7\n",
    "it was not completed": f"{steps(0, 9)}{TRACE}FooError: x\nTraining did not complete\n",
    "a test failed": f"{WATCHDOG}==== 1 failed, 13 passed in 9.1s ====\n",
    "the last attempt failed too": f"attempt 1\n{steps(0, 9)}attempt 2\n{steps(0, 9)}{TRACE}FooError: x\n",
    "no attempt followed": f"{steps(0, 9)}{TRACE}FooError: x\nscontrol requeue 88\n",
    "an attempt is of a connection": f"{TRACE}FooError: x\nclient connect attempt 2\n{steps(0, 9)}",
    "the server's health is asked": f'"POST /x HTTP/1.1" 200 OK\n{TRACE}FooError: x\n"GET /health HTTP/1.1" 200 OK\n',
    "who started it says that training is over": f"{steps(0, 9)}{TRACE}ValueError: batch 17 holds no tokens\n"
    "2026-01-02 03:04:06,000 INFO launcher: training completed, uploading logs\n",
    "and what the code was": f"{steps(0, 9)}{TRACE}ValueError: batch 17 holds no tokens\n"
    "2026-01-02 03:04:06,000 INFO x: finished training\n2026-01-02 03:04:06,100 INFO x: process exited with code 1\n",
    "what cleans up says OK": f"{steps(0, 9)}{TRACE}FooError: x\nOK\n",
    "a probe of health passes": f"{steps(0, 9)}{TRACE}FooError: x\n[health] PASS\n",
    "another rank came to its result": f"{steps(0, 9)}[rank3]: {TRACE}[rank3]: FooError: x\n"
    "[rank0]: {'train_runtime': 33.1, 'train_loss': 2.0}\n",
    "a timer is printed at the end": f"{steps(0, 9)}{TRACE}FooError: x\nTotal training time: 0:00:33\n",
    "an error was caught and the launcher saw one": f"{TRACE}FooError: x\ntrying to save\n"
    "[launch.py:7] ['python', 'x.py'] exits with return code = 1\n",
}


@each_row("text", FAILED.values(), ids=FAILED)
def test_a_job_that_failed_is_never_said_to_have_ended_well(tmp_path: Path, text: str) -> None:
    report = explained(tmp_path, text)
    assert report["outcome"] != "ended-well"
    assert report["causes"]


DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CHAINS = {
    "of a data set": f"{TRACE}KeyError: 'context'\n{DIRECT}{TRACE}datasets.exceptions.DatasetGenerationError: An error"
    "\n",
    "of another process": f'multiprocess.pool.RemoteTraceback: \n"""\n{TRACE}KeyError: \'context\'\n"""\n{DIRECT}'
    f"{TRACE}RuntimeError: worker 3 failed\n",
    "of a data loader": f"{TRACE}RuntimeError: Caught KeyError in DataLoader worker process 2.\nOriginal {TRACE}"
    "KeyError: 'context'\n",
    "of Ray's task": f"{TRACE}ray.exceptions.RayTaskError(KeyError): ray::f() (pid=2, ip=10.0.0.7)\n"
    f"  File \"x.py\", line 3, in f\nKeyError: 'context'\n{steps(0, 70)}",
    "that was spawned": f"{TRACE}torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with "
    f"the following error:\n{TRACE}KeyError: 'context'\n",
    "that refers above": "2026-03-04 10:00:01.1: E external/xla/cuda_dnn.cc:522] no 'context' of cuDNN 8.9.0\n"
    f"{TRACE}jaxlib.XlaRuntimeError: FAILED_PRECONDITION: DNN failed. Look at the errors above for more details.\n",
    "of a build": f"x.h:6:10: fatal error: no 'context'\nninja: build stopped: subcommand failed.\n{TRACE}"
    f"RuntimeError: Error building extension 'x'\nException ignored in: <function f>\n{TRACE}AttributeError: y\n",
    "of an import that failed": f"{TRACE}RuntimeError: The actor with name W failed to import on the worker:\n\n{TRACE}"
    "ImportError: no 'context'\n",
    "of a lookup": f"{TRACE}KeyError: 'x'\n{DURING}{TRACE}ValueError: there is no 'context' in model x\n",
    "that hydra shortens": "Error executing job with overrides: ['a=b']\nError in call to target 'x.D':\n"
    "FileNotFoundError(2, \"no 'context'\")\nfull_key: d\n",
}


@each_row("text", CHAINS.values(), ids=CHAINS)
def test_of_exceptions_that_pass_each_other_on_the_innermost_is_the_cause(tmp_path: Path, text: str) -> None:
    causes = explained(tmp_path, text)["causes"]
    assert "'context'" in causes[0]["evidence"][0]["text"]
    assert len(causes) == 1


def test_a_log_that_says_nothing_of_either_is_left_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = explained(tmp_path, f"n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n{steps(0, 9)}")
    assert (report["outcome"], report["exit_code"]) == ("unknown", 0)
    assert explain.main([str(tmp_path / "train.log"), "--no-color"]) == 0
    assert "`--failed`" in capsys.readouterr().out


def test_the_line_of_no_known_meaning_is_shown_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{steps(0, 9)}{WATCHDOG}[rank0]: {TRACE}[rank0]: c10::FrobError: CUDA frobnicated\n"
    report = explained(tmp_path, text)
    assert report["outcome"] == "failed"
    assert report["causes"][0]["evidence"][0]["text"] == "c10::FrobError: CUDA frobnicated"
    assert [each["id"] for each in report["causes"][0]["consequences"]] == ["log.collective-stuck/waited-in-vain"]
    capsys.readouterr()
    explain.main([str(tmp_path / "train.log"), "--no-color"])
    assert "FrobError" in "".join(capsys.readouterr().out.splitlines()[:4])


FORMS = (
    "Error: the vocabulary is gone",
    "error: frobnicator is missing",
    "ERROR: could not read the shard",
    "train.py: error: unrecognized arguments: --frob 3",
    "fatal: not a repository",
    "Fatal error: out of reach",
    "2026-01-02 03:04:05,123 - trainer - ERROR - the shard is broken",
    "2026-01-02 03:04:05,123 CRITICAL trainer: the shard is broken",
    "CRITICAL 01-02 03:04:05 [core.py:9] the shard is broken",
    "[NeMo E 2026-01-02 03:04:05 data:9] the shard is broken",
    "F0102 03:04:05.000000 77 shard.cc:33] Check failed: a == b (3 vs. 4)",
    "Failed to open /mnt/x",
    "loader: failed to map a shard",
    "Unable to find the shard",
    "initialisation of the shard: failure",
    f"{TRACE}my.own.ShardGone",
    "pkg.ShardError: it is gone",
    "terminate called after throwing an instance of 'shard::Gone'\n  what():  shard 7 is gone",
    "terminate called without an active exception",
    "thread 'main' panicked at src/main.rs:10:5:\nshard 7 is gone",
    "thread '<unnamed>' panicked at 'shard 7 is gone', src/main.rs:10",
    "panic: runtime error: index out of range [5] with length 3\n\ngoroutine 1 [running]:\nmain.main()",
    'Exception in thread "main" java.lang.IllegalStateException: shard',
    "Uncaught TypeError: x is not a function",
    "run.sh: line 12: shardctl: command not found",
    "/bin/sh: 1: shardctl: not found",
    "bash: /opt/x/run.sh: No such file or directory",
    "run.sh: line 3: ./train: Permission denied",
    "./train: error while loading shared libraries: libx.so.3: cannot open shared object file: No such file",
    "./train: symbol lookup error: ./libx.so: undefined symbol: shard_new",
    "python: src/x.cc:77: void f(): Assertion `x > 3' failed.",
    "srun: error: Unable to create step for job 5: Shard busy",
    "sbatch: error: Batch job submission failed: Invalid shard",
    "docker: Error response from daemon: could not select device driver",
    "make: *** [run] Error 1",
    "Warning  FailedScheduling  2m  default-scheduler  0/8 nodes are available",
    "Warning  BackOff    12s   kubelet  Back-off restarting failed container x in pod y",
    'CUDA error at foo.cu:77 code=719(cudaErrorLaunchFailure) "f()"',
    "CUFFT error: CUFFT_INTERNAL_ERROR at x.cpp:4",
    "RESOURCE_EXHAUSTED: no shard is left",
    "cp: error writing '/x': No space left on device",
)


@each_row("text", FORMS)
def test_a_last_line_that_by_its_form_is_a_failure_is_shown_first_whoever_wrote_it(tmp_path: Path, text: str) -> None:
    report = explained(tmp_path, f"{steps(0, 9)}{text}\n")
    first = report["causes"][0]["evidence"][0]["text"]
    assert any(line.endswith(first.partition(": ")[2] or first) for line in (text, *text.split("\n"))) or first in text
    assert report["outcome"] == "failed"


@each_row("text", [text for text in FORMS if not text.startswith(("srun", "terminate", "F0102"))])
def test_a_line_of_that_form_after_which_the_job_goes_on_is_none(tmp_path: Path, text: str) -> None:
    assert explained(tmp_path, f"{steps(0, 9)}{text}\n{steps(9, 50)}")["causes"] == []


@each_row(
    "text",
    [
        "error: 0.03",
        "errors 0",
        "Error rate: 2%",
        "val_error: 0.3",
        "INFO Error: x",
        "WARNING: failed to load x",
        "Error: could not read the cache, ignoring it",
        "Failed to import flash_attn; falling back to eager",
        "Request timeout for rid=7a1: client disconnected, aborting the request",
        "Summary of each failure:",
    ],
)
def test_figures_and_talk_of_errors_are_no_failure(tmp_path: Path, text: str) -> None:
    report = explained(tmp_path, f"{steps(0, 9)}{text}\n", "--exit-code")
    assert (accused(report), report["outcome"], report["exit_code"]) == ([], "unknown", 0)


@each_row(
    ("text", "blame"),
    [
        ("python: exits with return code = -9", "unknown"),
        ("[9.1] Out of memory: Killed process 77 (python) total-vm:9kB", "unknown"),
        ("[9.1] Memory cgroup out of memory: Killed process 77 (python) total-vm:9kB", "job"),
        (f"{TRACE}OSError: [Errno 28] No space left on device", "unknown"),
        (f"{TRACE}ValueError: batch 17 holds no tokens", "job"),
        (f"{TRACE}ModuleNotFoundError: No module named 'apex'", "image"),
        (f"{TRACE}ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory", "image"),
    ],
)
def test_the_job_is_blamed_where_the_line_proves_it(tmp_path: Path, text: str, blame: str) -> None:
    (cause,) = explained(tmp_path, f"{steps(0, 9)}{text}\n")["causes"]
    assert cause["blame"] == blame


def test_who_knows_that_a_job_failed_gets_a_line_all_the_same(tmp_path: Path) -> None:
    text = f"{steps(0, 9)}ERROR the disk frobnicates\n{CLOSING}"
    assert explained(tmp_path, text)["outcome"] == "ended-well"
    first = explained(tmp_path, text, "--failed")["causes"][0]
    assert first["evidence"][0]["text"] == "ERROR the disk frobnicates"


def test_what_a_check_makes_of_an_exception_comes_before_that_it_was_raised(tmp_path: Path) -> None:
    text = f"[rank0]: {TRACE}[rank0]: RuntimeError: The NVIDIA driver on your system is too old (found 11040).\n"
    (cause,) = explained(tmp_path, text)["causes"]
    assert cause["code"] == "cuda-driver-mismatch"


@each_row(("end", "lost"), [("", True), ("\n", False)])
def test_a_log_that_ends_within_a_line_of_nccls_has_lost_its_end(tmp_path: Path, end: str, lost: bool) -> None:
    info = "n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    report = explained(tmp_path, f"{info}{WATCHDOG}n1:7:7 [0] NCCL INFO Connected all ri{end}")
    assert any("NCCL_DEBUG_FILE" in note for note in report["notes"]) == lost


def test_the_step_of_slurm_is_no_step_of_the_program(tmp_path: Path) -> None:
    text = f"{steps(0, 9)}srun: error: Node failure on n7\nslurmstepd: error: *** STEP 99.0 ON n6 CANCELLED AT x ***\n"
    (cause,) = explained(tmp_path, text)["causes"]
    assert (cause["code"], cause["nodes"]) == ("rank-crashed", ["n7"])


@each_row(
    "end",
    [
        "Finished.",
        "done.",
        "exit 0",
        "train loop done, steps=8",
        "`Trainer.fit` stopped: `max_epochs=6` reached.",
        "3 epochs completed in 0.3 hours.",
        "sacct: 4711 COMPLETED 0:0",
        "===== 12 passed, 2 xfailed in 31.50s =====",
    ],
)
def test_how_programs_say_that_they_came_to_their_end(tmp_path: Path, end: str) -> None:
    assert explained(tmp_path, f"{steps(0, 9)}{end}\n")["outcome"] == "ended-well"


def test_a_test_that_fails_is_no_good_end(tmp_path: Path) -> None:
    assert explained(tmp_path, f"{steps(0, 9)}== 1 failed, 12 passed in 31.50s ==\n")["outcome"] != "ended-well"


def test_a_container_of_which_the_runtime_says_that_memory_did_not_end_it_had_memory(tmp_path: Path) -> None:
    state = '{"Status":"exited","OOMKilled":false,"Dead":false,"Pid":0,"ExitCode":137,"Error":""}\n'
    assert "memory" not in str(first_cause(tmp_path, {"state.json": state}).get("message"))


def test_a_gpu_that_the_driver_could_not_start_comes_before_the_program_that_saw_none(tmp_path: Path) -> None:
    kernel = "[   33.8] NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x63:0x0:1905)\n"
    raised = f"{RAISED}RuntimeError: No CUDA GPUs are available\n"
    first = first_cause(tmp_path, {"dmesg.txt": kernel, "train.log": raised})
    assert (first["code"], first["blame"]) == ("gpu-hw-error", "node")


def first_cause(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    for name, text in files.items():
        (folder / name).write_text(text)
    report = folder / "report.json"
    explain.main([*(str(folder / name) for name in files), "--json", str(report), "-q"])
    causes: list[dict[str, Any]] = json.loads(report.read_text())["causes"]
    return causes[0] if causes else {}


RAISED = 'Traceback (most recent call last):\n  File "x.py", line 3, in f\n'


def test_an_eviction_is_the_nodes_cause_of_what_the_others_say(tmp_path: Path) -> None:
    events = (
        "60m Normal Scheduled pod/w-0 Successfully assigned ns/w-0 to n7\n"
        "3m Warning Evicted pod/w-0 The node was low on resource: memory. Threshold quantity: 1Gi.\n"
    )
    lost = f"[rank1]: {RAISED}[rank1]: RuntimeError: [gloo/pair.cc:5] Connection closed by peer [10.0.0.9]:7\n"
    first = first_cause(tmp_path, {"events.txt": events, "rank1.log": lost.replace("\n  ", "\n[rank1]:   ")})
    assert (first["code"], first["nodes"], first["blame"]) == ("ended-from-outside", ["n7"], "node")


def test_addresses_before_a_colon_are_hosts_and_a_product_is_no_size_of_the_world(tmp_path: Path) -> None:
    text = "".join(f"10.0.0.{host}: step {step}\n" for step in range(4) for host in (1, 2))
    raised = f"{RAISED}AssertionError: batch is not micro * world_size1028 != 32 * 1 * 32\n".splitlines()
    text += "".join(f"10.0.0.1: {line}\n" for line in raised) + "pdsh@h: 10.0.0.1: ssh exited with exit code 1\n"
    first = first_cause(tmp_path, {"train.out": text})
    assert "AssertionError" in first["message"]
    assert not any("1027" in step for step in first["collect"])


def test_the_reason_beneath_a_validation_error_is_told_with_it(tmp_path: Path) -> None:
    text = f"{RAISED}pydantic_core.ValidationError: 1 validation error for C\n"
    text += "  Value error, 16 is too many [type=value_error]\n"
    assert "16 is too many" in first_cause(tmp_path, {"a.log": text})["evidence"][0]["text"]


def test_the_assertion_of_a_kernel_is_told_with_its_fault(tmp_path: Path) -> None:
    text = "x.cu:9: f: block: [1,0,0], thread: [7,0,0] Assertion `i < n` failed.\n"
    text += f"{RAISED}RuntimeError: CUDA error: device-side assert triggered\n"
    assert "`i < n`" in first_cause(tmp_path, {"a.log": text})["message"]


@each_row(
    "text",
    [
        "./run.sh: line 4: 2218 Segmentation fault      (core dumped) python train.py\n",
        f"{RAISED}OSError: [Errno 116] Stale file handle: '/data/x'\n",
    ],
)
def test_of_a_crash_or_a_failing_file_system_nobody_is_said_to_be_at_fault(tmp_path: Path, text: str) -> None:
    first = first_cause(tmp_path, {"a.log": text})
    assert (first["code"], first["blame"]) == ("rank-crashed", "unknown")


def test_a_rank_that_lost_its_communicator_and_then_crashed_did_not_begin(tmp_path: Path) -> None:
    lost = "{0}: E x.cc:9] Aborting communicator: 0x5 due to async NCCL error: remote process exited or there was a "
    lost += "network error\n"
    text = "".join(lost.format(rank) + f"{rank}: Fatal Python error: Segmentation fault\n" for rank in (3, 7))
    assert first_cause(tmp_path, {"a.log": text})["confidence"] == "unknown"


def test_a_port_that_was_taken_and_another_that_was_tried_are_no_cause(tmp_path: Path) -> None:
    text = "start.sh: port 29500 busy: [Errno 98] Address already in use; trying 29501\nstep 1 loss 2\n"
    assert accused(explained(tmp_path, text)) == []


def test_a_bridge_on_both_hosts_is_told_of_a_job_that_stands_still(tmp_path: Path) -> None:
    text = "".join(f"n{n}:7:7 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n" for n in (1, 2))
    (tmp_path / "a.log").write_text(text)
    explain.main([str(tmp_path / "a.log"), "--json", str(tmp_path / "r.json"), "-q"])
    assert "NCCL_SOCKET_IFNAME" in json.loads((tmp_path / "r.json").read_text())["stands"][0]


def test_a_watchdog_that_only_says_at_which_work_it_gave_up_speaks_of_a_failure(tmp_path: Path) -> None:
    said = (
        "[rank{0}]:[E227 16:30:43.5 ProcessGroupNCCL.cpp:1834] [PG ID 2 PG GUID 3 Rank {0}] Timeout at NCCL work: 32, "
    )
    said += "last enqueued NCCL work: 32, last completed NCCL work: 31.\n"
    text = "".join(f"[rank{rank}]: step 7 loss 2\n" for rank in range(4)) + "".join(map(said.format, (0, 1, 3)))
    assert first_cause(tmp_path, {"a.log": text})["ranks"] == [2]


def test_a_logger_before_its_level_is_no_host(tmp_path: Path) -> None:
    died = "20250227-16:10:00.5 a.launcher.ray INFO: "
    died = died.replace("20250227-16", "2025-02-27 16") + "A worker died or was killed while executing a task by an "
    first = first_cause(tmp_path, {"a.log": f"{died}unexpected system error.\n"})
    assert (first["nodes"], first["blame"]) == ([], "unknown")


@each_row(
    ("text", "code", "nodes", "ranks"),
    [
        ("ssh: connect to host n7 port 22: No route to host\n", "peer-unreachable", ["n7"], []),
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the "
            "node (IP: 10.0.0.7, ID: 5c1e) where the task was running was 191GB / 200GB. Ray killed this worker\n",
            "oom",
            ["10.0.0.7"],
            [],
        ),
        (
            "/x/bin/python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named "
            f"'a')\n{TRACE}x.TimeoutException: Timed out waiting for tasks to start.\n",
            "rank-crashed",
            [],
            [],
        ),
        (
            f"{TRACE}torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL\n",
            "rank-crashed",
            [],
            [1],
        ),
    ],
)
def test_who_started_a_process_says_where_it_ended(
    tmp_path: Path, text: str, code: str, nodes: list[str], ranks: list[int]
) -> None:
    first = first_cause(tmp_path, {"a.log": f"{steps(0, 9)}{text}"})
    sure = "narrowed" if "SIGKILL" in text else "named"  # it does not say who sent it
    assert (first["confidence"], first["code"], first["nodes"], first["ranks"]) == (sure, code, nodes, ranks)
    assert first["blame"] != "job" or "module" in text


_OF_A_KERNEL = "/a/native/cuda/Loss.cu:240: nll_loss: block: [1,0,0], thread: [3,0,0] Assertion `t >= 0` failed."
WITHOUT_TRACEBACK = {
    "SageMaker labels the ranks": ("[1,mpirank:3,algo-2]<stderr>:KeyError: 'tokens'\n", "raised KeyError", [3]),
    "a line begins with its place alone": ("[worker_base.py:88] KeyError: 'tokens'\n", "raised KeyError", []),
    "a message speaks of an element's type": (
        "[rank0]: RuntimeError: expected m1 and m2 to be c10::BFloat16\n",
        "raised RuntimeError",
        [0],
    ),
    "CUDA has not yet reported a kernel's assertion": (f"{_OF_A_KERNEL}\n", "its assertion `t >= 0` failed", []),
}


@each_row(("text", "message", "ranks"), WITHOUT_TRACEBACK.values(), ids=WITHOUT_TRACEBACK)
def test_what_a_program_raised_is_named_without_its_traceback(
    tmp_path: Path, text: str, message: str, ranks: list[int]
) -> None:
    (cause,) = explained(tmp_path, f"starting\n{text}")["causes"]
    assert (cause["code"], cause["ranks"]) == ("rank-crashed", ranks)
    assert message in cause["message"]


def test_a_log_that_ends_in_a_traceback_speaks_of_a_failure(tmp_path: Path) -> None:
    cut = 'out = net(x)Traceback (most recent call last):\n  File "x.py", line 3\n'
    report = explained(tmp_path, f"{steps(0, 9)}{cut}")
    assert [cause["id"] for cause in report["causes"]] == ["log.program-raised/traceback-is-cut-off"]


def test_advice_for_an_error_is_not_that_error(tmp_path: Path) -> None:
    text = "If you see `CUDA error: no kernel image is available`, build it for your GPU\n"
    assert explained(tmp_path, f"world size 2\n{steps(0, 9)}{text}")["causes"] == []


def test_a_job_whose_steps_go_on_misses_no_rank_that_wrote_nothing(tmp_path: Path) -> None:
    memory = "".join(f"[Rank {rank}] memory (MB) 7.5\n" for rank in (0, 1, 3, 4))
    glued = f"world size 8\n{memory}[Rank 5] memory (MB) 7.5[Rank 6] memory (MB) 7.5\n\n"
    (seen,) = explained(tmp_path, glued + steps(0, 30))["last_seen"]
    assert (seen["step"], seen["ranks"]) == (29, [])
    assert {rank for each in explained(tmp_path, glued)["last_seen"] for rank in each["ranks"]} == {0, 1, 3, 4, 5, 6}


_OF_WORKER, _OF_ENGINE = ("(W rank=1 pid=4) ERROR 07-23 19:34:51 [w.py:7] ", "ERROR 07-23 19:34:52 [core.py:9] ")


@each_row(
    ("reason", "code"), [("torch.OutOfMemoryError: CUDA out of memory.", "oom"), ("KeyError: 'w'", "rank-crashed")]
)
def test_an_exception_that_refers_to_another_above_it_takes_no_line_of_its_own_traceback(
    tmp_path: Path, reason: str, code: str
) -> None:
    def raised(head: str, why: str) -> str:
        lines = (
            "W failed to start.",
            "Traceback (most recent call last):",
            '  File "x.py", line 3, in f',
            "    raise e",
            why,
        )
        return "".join(f"{head}{line}\n" for line in lines)

    text = raised(_OF_WORKER, reason) + raised(
        _OF_ENGINE, "Exception: it did not start. See stack trace for root cause."
    )
    (cause,) = explained(tmp_path, f"world_size=2\n{text}")["causes"]
    assert (cause["code"], cause["ranks"]) == (code, [1])


def test_a_rank_that_comes_to_its_exit_after_another_failed_is_not_the_silent_one(tmp_path: Path) -> None:
    left = "[rank0]:[W723 19:34:51.7 Pg.cpp:9] Warning: destroy_process_group() was not called before program exit\n"
    failed = "[rank1]: RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
    causes = explained(tmp_path, f"world_size=2\n{failed}{left}")["causes"]
    assert all(0 not in cause["ranks"] and not cause["suspects"] for cause in causes)


def test_how_an_attempt_ended_is_told_though_the_next_one_went_well(tmp_path: Path) -> None:
    failed = f"[default1]:{TRACE}[default1]:RuntimeError: NCCL communicator was aborted on rank 1.\n"
    again = "I0311 10:05:01.1 900 torch/api.py:916] [default] Worker group FAILED; will restart worker group\n"
    report = explained(tmp_path, f"{steps(0, 9)}{failed}{again}{steps(9, 20)}{CLOSING}")
    (note,) = (note for note in report["notes"] if "attempts" in note)
    assert (report["outcome"], "NCCL communicator was aborted" in note) == ("ended-well", True)


READ = {
    "torchelastic logs an exception as JSON": (
        'ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{\n  "message": {\n    "message": '
        '"KeyError: \'w\'",\n    "extraInfo": {\n',
        ("rank-crashed", []),
    ),
    "Paddle's launcher names the signal": (
        "LAUNCH ERROR 2026-03-10 00:35:50,216 Container failed !!!\nContainer rank 2 status failed cmd ['/x/python', "
        "'-u', 'train.py'] code -9 log ./log/workerlog.2\n",
        ("rank-crashed", [2]),
    ),
    "Horovod lists ranks that lack each other's tensors": (
        "[0]<stderr>:[2026-12-29 16:51:57.7: W stall_inspector.cc:105] One or more tensors were submitted\n"
        "[0]<stderr>:Missing ranks:\n[0]<stderr>:0: [broadcast.a]\n[0]<stderr>:1: [allreduce.b, allreduce.c]\n",
        ("collective-desync", [0, 1]),
    ),
}


@each_row(("text", "answer"), READ.values(), ids=READ)
def test_what_launchers_and_frameworks_say_in_several_lines_is_read_together(
    tmp_path: Path, text: str, answer: tuple[str, list[int]]
) -> None:
    cause = explained(tmp_path, f"world_size=4\n{text}")["causes"][0]
    assert (cause["code"], cause["ranks"]) == answer


def test_a_traceback_among_others_whose_exceptions_are_there_is_not_cut_off(tmp_path: Path) -> None:
    head = "Traceback (most recent call last):\n"
    frame = '  File "x.py", line 3, in f\n'
    text = f"{head}{head}{frame}raise KeyError\n{frame}KeyError: 1\nKeyError: 1\n"
    ids = {cause["id"] for cause in explained(tmp_path, f"world_size=4\n{text}")["causes"]}
    assert "log.program-raised/traceback-is-cut-off" not in ids


def test_no_rank_is_read_out_of_a_number_that_ends_a_line(tmp_path: Path) -> None:
    text = 'XlaRuntimeError: {"grpc_message":"Barrier timed out. Timed out task names:\\n/task:3\\n","grpc_status":4}\n'
    assert all(4 not in cause["ranks"] for cause in explained(tmp_path, f"world_size=8\n{text}")["causes"])


@each_row("form", ["--local_rank=2", "--local-rank=2"])
def test_an_option_that_only_an_old_launcher_gives_is_named(tmp_path: Path, form: str) -> None:
    (cause,) = explained(tmp_path, f"world_size=4\ntrain.py: error: unrecognized arguments: {form}\n")["causes"]
    assert (cause["confidence"], "torchrun" in cause["message"]) == ("named", True)
