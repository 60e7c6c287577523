"""What steps tell of lines that stand before the first of them, and of what a job had done its work over until then."""

from pathlib import Path

from tests.each_row import each_row, some
from tests.log.test_outcome import CLOSING, TRACE, explained, first_cause, steps
from tests.log.test_pastes import BARE, EFA, GAVE_UP, INDEX, NO_ANSWER, ROCE, STARTED, cause

AT_START = [
    "Host key verification failed.\n",
    "git@github.com: Permission denied (publickey).\n",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is running.\n",
    "Failed to initialize NVML: Driver Not Loaded\n",
    "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\nretrying in 10 s\n",
    "UserWarning: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n",
    "WARNING custom_all_reduce.py:113] Custom allreduce is disabled: peer access is not supported between these two "
    "devices\n",
    "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n",
]


@each_row("said", AT_START)
def test_what_stands_before_many_steps_ended_nothing(tmp_path: Path, said: str) -> None:
    assert explained(tmp_path, said + steps(0, 60))["causes"] == []
    found = cause(tmp_path, said + steps(0, 30) + GAVE_UP)
    assert (found["confidence"], "ALLREDUCE" in found["message"]) == ("unknown", True)


@each_row("said", [each for each in AT_START if not each.startswith(("UserWarning", "WARNING"))])
def test_without_a_step_or_with_few_it_may_have(tmp_path: Path, said: str) -> None:
    assert explained(tmp_path, said)["causes"]
    assert cause(tmp_path, said + steps(0, 3))["code"] != "unknown"


def test_steps_do_not_outlive_a_traceback_the_kernel_or_what_is_set(tmp_path: Path) -> None:
    assert explained(tmp_path, f"{TRACE}FooError: x\n{steps(0, 30)}")["causes"]
    xid = "Nov 28 02:11:01 n1 kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=9, GPU has fallen off the bus.\n"
    assert cause(tmp_path, xid + steps(0, 30) + GAVE_UP)["code"] == "gpu-hw-error"
    wanted = "n1:7:7 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\nn1:7:7 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
    assert cause(tmp_path, wanted + steps(0, 30))["code"] == "libibverbs-missing"


ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


@each_row("said", [AT_START[4], AT_START[7], ECC])
def test_steps_that_a_full_buffer_brought_late_outlive_no_cause(tmp_path: Path, said: str) -> None:
    """Standard output that is no terminal is written in blocks, beneath what standard error said meanwhile."""
    text = f"{said}{steps(0, 60)}srun: error: n1: task 0: Exited with exit code 1\n"
    assert cause(tmp_path, text)["code"] not in ("unknown", "rank-crashed")


def test_steps_of_another_rank_outlive_no_cause_of_a_rank_that_made_none(tmp_path: Path) -> None:
    others = "".join(f"[rank0]: {line}\n" for line in steps(0, 30).splitlines())
    found = cause(tmp_path, ECC + others)
    assert (found["code"], found["ranks"]) == ("gpu-hw-error", [3])


def test_who_warns_that_it_goes_on_without_peer_access_asks_for_none(tmp_path: Path) -> None:
    assert cause(tmp_path, AT_START[6] + "RuntimeError: x\n")["code"] != "p2p-unsupported"


def test_what_cublas_says_after_an_assertion_follows_from_it(tmp_path: Path) -> None:
    asserted = "Indexing.cu:1290: f: block: [10,0,0], thread: [0,0,0] Assertion `i < n` failed.\n"
    blas = "[rank1]: RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n"
    (found,) = explained(tmp_path, asserted + blas)["causes"]
    assert (found["code"], "`i < n`" in found["message"]) == ("rank-crashed", True)
    assert cause(tmp_path, blas)["could_be"][0] == "oom"


BARS = "".join(f"{done:3d}%|##   | {done}/100 [01:{done}<05:00, 1.0s/it]\n" for done in (10, 20, 30))
SERVED = '10.0.0.1 - - [02/Jan/2026 08:11:53] "POST /generate HTTP/1.1" 200 -\n'
WORK = [steps(0, 20), BARS, SERVED]
OF_DATA = (("Generating train split:", "9 examples/s"), ("Map (train):", "9 it/s"), ("", "9 examples/s"))
NO_WORK = [
    "",
    steps(0, 1),
    "".join(f"Loading weights: {line}\n" for line in BARS.splitlines()),
    *(f"{title} 50%|## | 50/100 [00:05<00:05, {rate}]\n" for title, rate in OF_DATA),
]
LINK_LOCAL = "n2:7:9 [0] misc/socket.cc:4 NCCL WARN socketStartConnect: Connect to fe80::20d:1%eth0<4> failed : {}\n"
FIRST = [
    (EFA.format(host=1) + EFA.format(host=2), "efa-security-group"),
    (INDEX + ROCE.format(link="RoCE") + "{}" + NO_ANSWER.format(**BARE), "ib-gid"),
    (STARTED.format(1) + STARTED.format(2) + "{}" + LINK_LOCAL.format("Connection timed out"), "iface-wrong-veth"),
]


@each_row(("text", "code"), FIRST)
def test_over_what_a_job_has_worked_it_is_not_to_blame(tmp_path: Path, text: str, code: str) -> None:
    between = text if "{}" in text and "WARN" in text.partition("{}")[2] else "{}" + text
    for work in some(WORK):
        assert cause(tmp_path, between.replace("{}", work, 1))["code"] != code, work
    for work in some(NO_WORK):
        assert cause(tmp_path, between.replace("{}", work, 1))["code"] == code, work


def test_steps_of_another_log_are_of_the_same_job(tmp_path: Path) -> None:
    files = {"a.log": steps(0, 20), "b.log": EFA.format(host=1), "c.log": EFA.format(host=2)}
    assert first_cause(tmp_path, files)["code"] == "rank-crashed"


def test_an_end_is_still_an_end(tmp_path: Path) -> None:
    assert explained(tmp_path, AT_START[0] + steps(0, 30) + CLOSING)["outcome"] == "ended-well"
