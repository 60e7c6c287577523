"""Single lines, and what functions of ncclprobe.logs read in each: every word of their tables, and its near misses."""

from collections.abc import Iterator

from ncclprobe.facts.files.flight_records import FlightCall
from ncclprobe.logs import collectives, nccl_lines, texts, torch_lines
from tests.log.events import WARN
from tests.log.whole import watchdog

SPOKEN = (
    "level=fatal msg=x", 'level="error" x', '{"severity": "ERROR"}', '{"level":"panic"}', "level=FATAL x",
    "level=err x", "level=info fatal", "severity of fatal", "terminate called after",
    "Program received signal SIGSEGV, x", "Program received signal SIGTERM", "Aborted", "Aborted (core dumped)",
    "Aborted!", "Aborted by", "Killed", "Killed   python", "Killed by", "Segmentation fault", "Bus error",
    "Check failed: x", "Fatal error x", "fatal python error", "Fatal a b c error", "FATAL x", "fatal: x", "panic: x",
    "Uncaught x", "Unhandled exception", "Exception in thread x", "make: *** x", "thread 'a' panicked",
    "thread 'a' (7) panicked", "make[1]: *** x", "a: error while loading shared libraries",
    "a: symbol lookup error: x", "a: b: symbol lookup error: x", "a: version `B' not found (required by c)",
    "a: error: unrecognized x", "a: Error: unrecognised x", "a: error: unknown x", "a: error: ambiguous option x",
    "a: error: invalid x", "a: error: argument x", "a: error: the following arguments", "a: error: no such x",
    "a: error: odd", "a.c:9: f: Assertion `b' failed", "srun: error: x", "sbatch: error: x", "salloc: fatal: x",
    "slurmstepd: error x", "mpirun: Error x", "mpiexec: error", "prterun: error", "orted: error", "prted: error",
    "horovodrun: error", "deepspeed: error", "kubectl: error", "docker: error", "enroot: error", "pyxis: error",
    "singularity: error", "apptainer: error", "frobrun: error", "a.b.OfflineModeIsEnabled: x", "a.OfflineMode: x",
    "INVALID_ARGUMENT: x", "RESOURCE_EXHAUSTED: x", "DEADLINE_EXCEEDED: x", "FAILED_PRECONDITION: x",
    "PERMISSION_DENIED: x", "UNIMPLEMENTED: x", "  (0) Invalid argument: x", "  (1) Data loss: x",
    "[12:01:02] ERROR: x", "ERROR x", "a b c d e f g ERROR x", "main CRITICAL x", "SEVERE x", "[ERROR] x",
    "MY_ERROR x", "ERRORS x", "[error] x", "Error: x", "a: b: c: error: x", "FAILURE: x", "ZetaError", "ZetaError: x",
    "ZetaException(7)", "SystemExit: 1", "Zeta_Interrupt", "KeyboardInterrupt", "ZetaFailure: x", "ZetaErrors: x",
    "Caused by: x", "Error loading x", "Error in file x", "Error at line 7", "Abort: x", "Aborting: x", "Aborted: x",
    "CUDA error x", "Cuda failure x", "CUBLAS error", "CUFFT error", "CUDNN error", "NCCL error", "HIP error",
    "NVML error", "cudaMalloc failed", "cuInit error", "CUDA driver error", "CUDA runtime error", "CUDA ERROR",
    "[CUDA_ERROR_X]", "CUBLAS_STATUS_X", "CUFFT_STATUS_X", "CUDNN_STATUS_X", "CUSOLVER_STATUS_X", "NCCL_ERROR_X",
    "a.c:3:4: error: x", "a.c:3:4: fatal error: x", "a: No space left on device", "a: Cannot allocate memory",
    "Stale file handle", "Input/output error", "Disk quota exceeded", "Read-only file system",
    "bash: line 3: a: command not found", "a: b: not found", "a: b: No such file or directory",
    "a: b: Permission denied", "a: b: cannot execute: x", "it failed", "it fails not", "unable to go", "it refused",
    "a does not match b", "it crashed", "aborted here", "mismatch", "unrecognised argument", "unrecognized option x",
    "connect failed: Resource temporarily unavailable", "error at connect: No such device",
    "open: failure: Permission denied", "bind could not: Invalid argument", "cannot bind: Operation not permitted",
    "can not: Operation not supported", "unable to open: No such file or directory", "bind: Operation not permitted",
    "9s  Warning  BackOff  x", "9s  Warning  FailedMount x", "Warning  Evicted x", "Warning  OOMKilling x",
    "Warning  NodeNotReady x", "Warning  NetworkNotReady x", "Warning  ErrImagePull x", "Normal  BackOff x",
    "a: WARN it failed", "Warning: it failed", "[warning: it failed", "it failed, falling back", "failed, retry",
    "failed, retrying", "failed: retry count 7", "failed: retry limit", "failed, ignored", "failed; b instead",
    "failed, skipped", "failed, continuing", "failed, proceeding", "optional: it failed", "failed (non-fatal)",
    "failed, not fatal", "failed, harmless", "failed, recovered", "failed, please install x", "failed: deprecated",
    "failed, still trying", "failed, trying again", "the request failed", "failed request_id 7", "failed rid=a7",
    "client disconnected, failed", "client has disconnected", "Error executing job with overrides: x", "it failed:",
    "it failed:  ", "Traceback (most recent call last):")  # fmt: skip
"""What may speak of a failure."""
ENDED = (
    "training finished", "Train loop complete", "pre-training done", "fine-tuning completed", "job succeeded",
    "run successful", "benchmark done", "program finished", "script completed", "experiment done",
    "finished successfully", "completed normally", "done, cleanly", "ended normally", "exited with code 0",
    "exits with status: 0", "finished training", "exit code: 0", "exit status 0", "return code = 0", "retcode: 0",
    "exit code: 0.5", "RESULT, 7", "'train_runtime': 7", "***** train metrics *****", "finished", "all done!", "done.",
    "exit: 0", "Trainer.fit` stopped: `max_steps=7", "successfully finished", "Out of bounds values : 0 OK",
    "epoch completed in 7", "COMPLETED 0:0", "wandb: Synced 5", "(success)", "saved the final model",
    "INFO:  Application shutdown complete", "=== 3 passed, 1 skipped in 7", "job not done", "job didn't finish, done",
    "agent finished training", "job done, 1 failed", "training done, aborted", "if training is done",
    "when job is done", "until training is done", "evaluation run finished", "1 xfailed, job done", "train_runtime: 7",
    '"key": "run_stop"', '"key": "run_stop", "abort', "run_stop: success", "training is finished after 7",
    "completed after 12 iterations", "done training in 7", "[after training is done]",
    "Training completed. Do not forget", "ENDING TIMING RUN AT 7", "State: COMPLETED",
    "W&B process to finish... (success)", "|  Tasks  |Version", "== 3 passed in 7", "== 1 skipped, 2 xpassed in 7",
    "[  PASSED  ] 7", "worker group successfully finished", "group finished (SUCCEEDED)", "OK", "OK (skipped=3)",
    "all tests passed", "[gw0] PASSED", "Total training time: 7", "training time 7", "training was completed",
    "completed the training", "pre-training done", "Will restart worker group", "will restart the worker group",
    "restart_count=1", "restart_count=0", "RESTART_COUNT: 2", "restarting training #2", "relaunch (1)",
    "requeued job 3", "attempt number 1", "attempt 0", "Restoring trial x", "requeuing", "scontrol requeue 7",
    "DUE TO PREEMPTION", "DUE TO NODE FAILURE", "resuming from 7", "resumed training from x", "resumed later",
    "retrying", "re-trying", "trying x", "falling back", "skipped", "using cpu", "using cpu now", "will be retried",
    "as expected", "expected error", "Exception ignored in x", "expected x", "prompt: x", "prompts[3]: x",
    "completion = x", "instruction: x", "assistant: x", '"question": "x"', "response = [x", "user: {x", "human 3: 'x'",
    "record: 'x'", "input | 'x'", "text: 'x'", "messages: [x", "answer: x", "7: prompt: x", "If you see `CUDA error`",
    "In case this is 'x'", "When your job says 'x'", "If it says 'x'", "see above", "look at the root cause",
    "check the stack trace", "inner exception", "look up to see", "Error building extension", "check it",
    " 50%|##| 1.5k/3k [01:02:03<9", "a: 1%|#| 2/9 [1:00<", "x 9%|#| 1.2.3/9 [10:00<", "9%|#| ./9 [10:00<9",
    "b: 7M examples [00:09, x/s]", "b :  3G [1:00:00, 9/s]", "7k [00:09, 9 x]", "a" * 600 + " failed",
    " " * 300 + "training finished")  # fmt: skip
"""What may speak of an end, of another attempt, or of nothing of the job."""
LEVELS = ("INFO", "DEBUG", "TRACE", "WARN", "ERROR", "EXCEPTION", "FATAL", "NOTE")
ASKED = (
    texts.says_finished, texts.brings_result, texts.begins_anew, texts.was_caught, texts.was_expected,
    texts.prints_data, texts.advises, texts.refers)  # fmt: skip
GOT = "NET/IB: Got completion from peer 10.0.0.2<4> with {} opcode=1 len=0 vendor err 129"
QP = "Call to ibv_modify_qp failed "
OF_NCCL = (
    *(GOT.format(f"{how} hca mlx5_1 localGid fe80::1 remoteGid fe80::2 x")
      for how in ("error 12,", "status=5", "status=X(10)")),
    GOT.format("error 3 localGid ::1remoteGids ::2 hca mlx5_0"), GOT.format("status=X"),
    GOT.format("error 4, remoteGids  ::3 ::4  hca mlx5_2"),
    *(f"{QP}with {error}" for error in ("110 Connection timed out", *nccl_lines.ERRNOS, "Success")),
    f"{QP}: x errno 22, on dev mlx5_0:1, local GID index 3, local GID fe80::1, remote GID ::ffff:10.0.0.2",
    f"{QP}with 61 No data available, remote GID index 3", "Call to connect failed : Connection refused",
    *(f"Call to {call} failed : Connection refused" for call in ("recv from n1<7>", "send to n2<7>", "send")),
    *(f"Connect to [fe80::1]:7{how}" for how in (" failed : No route to host", " (x) errno 113", " (x)", " failed")),
    *(f"{call} to 10.0.0.3<9> x" for call in ("socketPollConnect", "ncclOsSocketPollConnect", "socketPollAccept")),
    "connect returned No route to host, retrying", "accept returned No route to host, retrying", "connect, retrying",
    *(f"Connect to n7<4> exceeded {to}" for to in ("retries", "error retry count", "timeouts", "timeouts Bad address")),
    *(f"Message truncated : received {n} bytes" for n in (0, 1, (1 << 20) - 1, 1 << 20, -1, "x")),
    *(f"Failed to malloc {n} bytes" for n in (0, (1 << 36) - 1, 1 << 36, -1, "x")),
    *(f"mismatch in info from procs nranks {n}, x" for n in ("2 vs 2", "2 vs 3", "2 vs 2 vs 2", "2")),
    "Using eth0:10.0.0.1<0>", "Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB e:1<0>", "Using [0]a]b:1/IB", "-12x",
    "Using :1<0> x:2 eth1:fe80::1%e<0><1> a:1/b/c", "10.0.0.1<7>", " [::1]:7 ", "[n7]", "-x", "1234567890123", "7<8<9",
)  # fmt: skip
LOST = "last {}nqueued{} work: 5, last completed{} work: 4."
OF_TORCH = (
    *(f"[{who}] {torch_lines.TIMED_OUT}: WorkNCCL({work}) ran" for who, work in (
        ("Rank 3", "SeqNum=7, OpType=ALLREDUCE, NumelIn=4"), ("PG 0 Rank 4", "OpType=A)(x), TensorShape=[2, 3]"),
        ("PG ID 1 PG GUID 2(mesh) Rank 5", "SeqNum=x, OpType=A)B)C"))),
    *(f"[Rank 1] {LOST.format('e', *each)}" for each in ((" NCCL", " NCCL"), ("", ""), (" NCCL", ""))),
    *(f"[Rank 2] Last enqueued NCCL work: {n}, last completed NCCL work: {m}" for n, m in ((7, -1), ("x", 3))),
    "last enqueued x", "waiting for clients. 3/4 clients joined.", "waiting for clients. x/4 clients joined.",
    *(f"{what} in store based barrier, world_size=4, {how}=3{more}" for what, how, more in (
        ("Timed out", "worker_count", ""), ("timed out", "num_workers_joined", ", worker_count=9"),
        ("Waiting", "worker_count", ""))),
    "clients joined", "Timed out, world_size=4, worker_count=3", "0, 1,3, x, 05", "rank 7,8", f"{'1,' * 3000}2", WARN,
)  # fmt: skip


def rows() -> Iterator[tuple[str, object]]:
    """Yield each line with what is read in it."""
    for text in (*SPOKEN, *ENDED):
        forms = [texts.form_of_failure(text, level) for level in ("", "WARN", "ERROR")]
        said = [ask.__name__ for ask in ASKED if ask(text)] + ["goes_on"] * texts.goes_on(text, "")
        claims = [texts.claims_end(text, logged=logged) for logged in (False, True)]
        bar = texts.bar_of(text)
        yield text[:90], [*forms, *said, *claims, f"{bar} {bar.seconds}" if bar else ""]
    for level in LEVELS:
        asked = [
            texts.form_of_failure(text, level) for text in ("it failed", "ERROR: x", "Killed", "x", "failed, retrying")
        ]
        yield f"at level {level}", [*asked, texts.goes_on("failed, retrying", level)]
    bars = [bar for text in ENDED if (bar := texts.bar_of(text))]
    later = [texts.Bar(each.title, each.done + more, each.of, each.elapsed + tail) for each in bars
             for more, tail in ((1, ""), (0, ":00"), (1, ":00"), (-1, ":00"))]  # fmt: skip
    yield "bars that go on", [[one.goes_on(other) for other in bars] for one in later]
    asked_nccl = (nccl_lines.completion, nccl_lines.qp_refusal, nccl_lines.failed_connection, nccl_lines.used,
                  nccl_lines.is_build_mismatch, nccl_lines.other_length, texts.number, texts.address_of)  # fmt: skip
    for text in OF_NCCL:
        yield text, {ask.__name__: said for ask in asked_nccl if (said := ask(text))}
    for text in (*OF_TORCH, watchdog(3)):
        asked_torch = (torch_lines.timed_out_work, torch_lines.progress, torch_lines.waited, torch_lines.ranks_in)
        yield text[:90], {ask.__name__: str(said)[-300:] for ask in asked_torch if (said := ask(text))}
    gids = ("", "fe80::1", "::ffff:10.0.0.1", "::ffff:10.0.0.2", "::ffff:10.0.1.1")
    asked_gids = (nccl_lines.rails_differ, nccl_lines.types_differ, nccl_lines.without_address)
    for one in gids:
        yield f"GIDs, {one}", [[ask(one, other) for other in gids] for ask in asked_gids]
    for op in OPS:
        yield (
            f"equal on all of {op}",
            str(collectives.equal_on_all(FlightCall(op, False, "x", "y", 8, 9, "Half", "Float"))),
        )
    yield "tables", [*nccl_lines.CONTAINER_PORTS, *nccl_lines.TUNNELS, *nccl_lines.STATUS_NAMES.items()]


OPS = (
    "_broadcast_oop", "_reduce_oop", "_reduce_scatter_base", "all_reduce", "allreduce_coalesced", "broadcast",
    "gather", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "_all_gather_base", "all_gather", "all_gather_into_tensor_coalesced", "all_gather_single", "scatter", "all_to_all",
    "all_to_all_single", "all_to_all_v_single", "barrier")  # fmt: skip
