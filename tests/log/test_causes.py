"""From logs to causes: which finding explains which."""

from ncclprobe.engine.diagnose import LEFT, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.logs.causes import causes
from ncclprobe.logs.job_log import JobLog
from ncclprobe.logs.rank_ends import clocks
from ncclprobe.logs.reader import read
from ncclprobe.logs.timeline import missing_ranks
from ncclprobe.model.causes import Cause
from ncclprobe.model.snapshot import Job
from tests.each_row import each_row

CHECKS = every_check(LEFT)
RULES = {check.key: check.cause for check in CHECKS if check.cause}
SIGNS = [sign for rule in RULES.values() for sign in rule.signs]


def explained(ahead_s: dict[str, float] | None = None, **logs: str) -> tuple[Cause, ...]:
    log = read(((name, [text.encode()]) for name, text in logs.items()), SIGNS)
    return causes(judge([], CHECKS, Job(), {JobLog: log}), RULES, ahead_s)


NO_INTERFACE = "node1:77:77 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found\n"
UNHANDLED = "[rank3]: DistBackendError: NCCL error in: x.cpp:1, unhandled system error\n"


def test_a_cause_stands_first_and_its_consequence_beneath_it() -> None:
    (found,) = explained(rank3=NO_INTERFACE + UNHANDLED)
    assert (found.code, found.id, found.confidence) == ("iface-missing", "log.interface/no-interface", "named")
    assert [each.id for each in found.consequences] == ["log.nccl-failed/nccl-returned-an-error"]
    assert (found.evidence[0].source, found.evidence[0].line) == ("rank3", 1)
    assert found.doctor == "env.ifname"


def test_a_consequence_alone_is_an_unknown_cause() -> None:
    (found,) = explained(rank3=UNHANDLED)
    assert (found.code, found.confidence) == ("unknown", "unknown")


def test_a_consequence_that_came_first_is_not_explained_by_what_came_later() -> None:
    between = "[rank3]: step\n" * 20
    assert [each.code for each in explained(rank3=UNHANDLED + between + NO_INTERFACE)] == ["iface-missing", "unknown"]


def test_what_torch_prints_below_its_error_as_nccls_last_one_explains_it() -> None:
    (found,) = explained(rank3=UNHANDLED + "[rank3]: Last error:\n[rank3]: Bootstrap : no socket interface found\n")
    assert (found.code, len(found.consequences)) == ("iface-missing", 1)


def test_a_log_without_failures_has_no_cause() -> None:
    assert explained(rank0="node1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nloss 3.1\n") == ()


@each_row("text", ["", "\0\0", "[rank3]:", "\x1b[31m"])
def test_any_text_is_a_log(text: str) -> None:
    assert explained(any=text) == ()


KILLED = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-22_10:00:00\n  host      : n2\n"
    "  rank      : 5 (local_rank: 1)\n  exitcode  : -11 (pid: 77)\n  error_file: <N/A>\n"
    "  traceback : Signal 11 (SIGSEGV) received by PID 77\n====\n"
)
PORT_DOWN = "n1:7:7 [0] net_ib.cc:1 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"
ECHO = (
    "n0:6:6 [0] p2p.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status=IBV_WC_RETRY_EXC_ERR(12) "
    "opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_0\n"
)
ADDRESSES = "n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n"


def test_two_independent_faults_are_two_causes() -> None:
    found = explained(launcher=KILLED, rank3=NO_INTERFACE)
    assert {(each.code, each.ranks) for each in found} == {("rank-crashed", (5,)), ("iface-missing", (3,))}


@each_row("launcher", [KILLED.replace(": n2", ": localhost"), "srun: error: gpu-0-1: task 5: Segmentation fault\n"])
def test_what_a_launcher_calls_the_host_is_no_second_host_that_a_loopback_address_keeps_out(launcher: str) -> None:
    lone = "n1:{r}:{r} [{r}] NCCL INFO Bootstrap : Using {at}<0>\n"
    for at in ("lo:127.0.0.1", "eth0:172.17.0.2"):
        found = explained(launcher=launcher, rank4=lone.format(r=4, at=at), rank5=lone.format(r=5, at=at))
        assert [each.code for each in found] == ["rank-crashed"]


def test_the_echo_of_a_fault_at_its_peer_is_no_cause_of_its_own() -> None:
    (found,) = explained(rank0=ECHO, rank4=ADDRESSES + PORT_DOWN)
    assert (found.code, found.ranks) == ("ib-link-error", (4,))
    assert [each.ranks for each in found.consequences] == [(0,)]


def test_a_fault_that_is_later_by_a_clock_that_both_hosts_share_explains_nothing() -> None:
    first, later = (f"[2026-11-22 10:{minute}:30] " for minute in ("00", "01"))
    logs = {"rank0": first + ECHO, "rank4": ADDRESSES + later + PORT_DOWN}
    rows = [(None, 1), ({"n1": 0.0}, 1), ({"n0": 0.0, "n1": 60.0}, 1), ({"n0": 0.0, "n1": 0.0}, 2)]
    assert [(ahead_s, len(explained(ahead_s, **logs))) for ahead_s, _ in rows] == rows


def test_the_order_of_the_logs_changes_no_cause() -> None:
    one = explained(a=ECHO, b=ADDRESSES + PORT_DOWN)
    other = explained(b=ADDRESSES + PORT_DOWN, a=ECHO)
    assert [each.code for each in one] == [each.code for each in other]


INIT = (
    "[2026-11-22 10:00:{s:02d}] {h}:7:7 [0] NCCL INFO comm 0x1 rank {r} nranks 2 cudaDev 0 busId 1 commId 0x{c} "
    "- Init COMPLETE\n"
)


def test_clocks_are_compared_by_what_several_hosts_did_together() -> None:
    logs = {"a": INIT.format(s=1, h="n0", r=0, c=9), "b": INIT.format(s=41, h="n1", r=1, c=9)}
    found = clocks(read((name, [text.encode()]) for name, text in logs.items()))
    assert found.ahead_s == {"n0": 0.0, "n1": 40.0}
    assert (
        found.in_words() == "the clock of n1 is 40 s ahead, by 1 communicator that several hosts initialised together"
    )


def test_clocks_without_a_shared_moment_are_compared_with_nothing() -> None:
    logs = {"a": INIT.format(s=1, h="n0", r=0, c=8), "b": INIT.format(s=41, h="n1", r=1, c=9)}
    found = clocks(read((name, [text.encode()]) for name, text in logs.items()))
    assert found.ahead_s == {}
    assert "not compared" in found.in_words()


def test_ranks_without_a_log_are_asked_for() -> None:
    log = read([("a", [INIT.format(s=1, h="n0", r=0, c=8).replace("nranks 2", "nranks 8").encode()])])
    assert missing_ranks(log) == tuple(range(1, 8))
