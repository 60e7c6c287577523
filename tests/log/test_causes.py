"""From logs to causes: which finding explains which."""

from ncclprobe.engine.diagnose import LEFT, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.logs.causes import causes
from ncclprobe.logs.job_log import JobLog
from ncclprobe.logs.rank_ends import clocks
from ncclprobe.logs.reader import read
from ncclprobe.model.causes import Cause
from ncclprobe.model.snapshot import Job
from tests.each_row import each_row

CHECKS = every_check(LEFT)
RULES = {check.key: check.cause for check in CHECKS if check.cause}
SIGNS = [sign for rule in RULES.values() for sign in rule.signs]


def explained(ahead_s: dict[str, float] | None = None, **logs: str) -> tuple[Cause, ...]:
    log = read(((name, [text.encode()]) for name, text in logs.items()), SIGNS)
    return causes(judge([], CHECKS, Job(), {JobLog: log}), RULES, ahead_s)


PORT_DOWN = "n1:7:7 [0] net_ib.cc:1 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"
ECHO = (
    "n0:6:6 [0] p2p.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status=IBV_WC_RETRY_EXC_ERR(12) "
    "opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_0\n"
)
ADDRESSES = "n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n"


@each_row(
    "text",
    ["", "\0\0", "[rank3]:", "\x1b[31m", "n1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nloss 3.1\n"],
)
def test_any_text_is_a_log_and_one_without_failures_has_no_cause(text: str) -> None:
    assert explained(any=text) == ()


def test_the_order_of_the_logs_changes_no_cause() -> None:
    one, other = ADDRESSES + PORT_DOWN, ECHO
    assert [each.code for each in explained(a=one, b=other)] == [each.code for each in explained(b=one, a=other)]


def test_a_fault_that_is_later_by_a_clock_that_both_hosts_share_explains_nothing() -> None:
    first, later = (f"[2026-11-22 10:{minute}:30] " for minute in ("00", "01"))
    logs = {"rank0": first + ECHO, "rank4": ADDRESSES + later + PORT_DOWN}
    rows = [(None, 1), ({"n1": 0.0}, 1), ({"n0": 0.0, "n1": 60.0}, 1), ({"n0": 0.0, "n1": 0.0}, 2)]
    assert [(ahead_s, len(explained(ahead_s, **logs))) for ahead_s, _ in rows] == rows


INIT = (
    "[2026-11-22 10:00:{s:02d}] {h}:7:7 [0] NCCL INFO comm 0x1 rank {r} nranks 2 cudaDev 0 busId 1 commId 0x{c} "
    "- Init COMPLETE\n"
)


@each_row(
    ("other", "ahead_s", "words"),
    [
        (9, {"n0": 0.0, "n1": 40.0}, "the clock of n1 is 40 s ahead, by 1 communicator that several hosts initialised"),
        (8, {}, "not compared"),
    ],
)
def test_clocks_are_compared_by_what_hosts_did_together(other: int, ahead_s: dict[str, float], words: str) -> None:
    logs = {"a": INIT.format(s=1, h="n0", r=0, c=9), "b": INIT.format(s=41, h="n1", r=1, c=other)}
    found = clocks(read((name, [text.encode()]) for name, text in logs.items()))
    assert (found.ahead_s, words in found.in_words()) == (ahead_s, True)
