"""Single lines of NCCL and torch that say what failed, in each release's form."""

from ncclprobe.logs import nccl_lines, torch_lines
from ncclprobe.logs.nccl_lines import Completion, FailedConnection, QpRefusal, Used
from ncclprobe.logs.texts import address_of, between, number
from ncclprobe.logs.torch_lines import Progress, TimedOutWork, Waited, hangs
from tests.each_row import each_row


@each_row(
    ("text", "said"),
    [
        (
            "NET/IB : Got completion with error 12, opcode 1, len 32478, vendor err 129",
            Completion(12),
        ),
        (
            "NET/IB : Got completion from peer 10.0.0.2<40211> with error 12, opcode 1, len 0, vendor err 129 (Recv) "
            "localGid fe80::1 remoteGid ::ffff:10.0.0.2",
            Completion(12, "10.0.0.2", "", "fe80::1", "::ffff:10.0.0.2"),
        ),
        (
            "NET/IB: Got completion from peer n2.local<40211> with status=5 opcode=0 len=0 vendor err 249 (Send) "
            "localGid ::ffff:10.1.0.1 remoteGids::ffff:10.1.0.2 hca mlx5_3",
            Completion(5, "n2.local", "mlx5_3", "::ffff:10.1.0.1", "::ffff:10.1.0.2"),
        ),
        (
            "NET/IB: Got completion from peer 10.0.0.2<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) "
            "vendor_err=129 qp_num=9  hca mlx5_0",
            Completion(12, "10.0.0.2", "mlx5_0"),
        ),
        ("NET/IB: Got completion", None),
        ("Got completion with error x", None),
    ],
)
def test_a_completion_is_read_in_each_form(text: str, said: Completion | None) -> None:
    assert nccl_lines.completion(text) == said


@each_row(
    ("text", "said"),
    [
        ("Call to ibv_modify_qp failed with error Invalid argument", QpRefusal(22, "Invalid argument")),
        ("Call to ibv_modify_qp failed with error No data available errno 61", QpRefusal(61, "No data available")),
        (
            "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state "
            "RTR, local GID index 3, local GID ::ffff:10.1.0.1, remote GID ::ffff:10.2.0.2",
            QpRefusal(110, "Connection timed out", "mlx5_0:1", "::ffff:10.1.0.1", "::ffff:10.2.0.2"),
        ),
        (
            "Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR, "
            "local GID index -1, local GID N/A, remote GID N/A",
            QpRefusal(22, "Invalid argument", "mlx5_0:1"),
        ),
        ("Call to ibv_create_qp failed", None),
    ],
)
def test_a_refused_queue_pair_is_read_in_each_form(text: str, said: QpRefusal | None) -> None:
    assert nccl_lines.qp_refusal(text) == said


@each_row(
    ("text", "said"),
    [
        ("Connect to 10.0.0.2<4> failed : No route to host", FailedConnection("10.0.0.2", "No route to host", True)),
        (
            "Net : Connect to 10.0.0.2<4> failed : Connection refused",
            FailedConnection("10.0.0.2", "Connection refused", True),
        ),
        ("socketStartConnect: exceeded retries (20000)", FailedConnection("", "Connection refused", True)),
        ("socketPollConnect: exceeded timeouts (3)", FailedConnection("", "Connection timed out", True)),
        (
            "socketPollConnect: connect to 10.0.0.2<4> returned Connection timed out, exceeded error retry count after "
            "35 attempts",
            FailedConnection("10.0.0.2", "Connection timed out", True),
        ),
        (
            "socketPollConnect: connect to fe80::1%eth0<4> returned No route to host, retrying (1/34) after sleep for "
            "100 msec",
            FailedConnection("fe80::1%eth0", "No route to host", False),
        ),
        ("Call to connect returned Connection refused, retrying", FailedConnection("", "Connection refused", False)),
        ("Bootstrap : Using eth0:10.0.0.1<0>", None),
    ],
)
def test_a_failed_connection_is_read_in_each_form(text: str, said: FailedConnection | None) -> None:
    assert nccl_lines.failed_connection(text) == said


def test_what_is_in_use_is_read_with_its_address_or_link_layer() -> None:
    assert nccl_lines.used("Bootstrap : Using [0]eth0:10.0.0.1<0>") == (Used("eth0", "10.0.0.1"),)
    assert nccl_lines.used("NET/Socket : Using [0]a:10.0.0.1<0> [1]b:fe80::1%b<0>") == (
        Used("a", "10.0.0.1"),
        Used("b", "fe80::1%b"),
    )
    assert nccl_lines.used("NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>") == (
        Used("mlx5_0:1", link="IB/SHARP"),
        Used("mlx5_1:1", link="RoCE"),
    )


def test_gids_are_told_apart_by_kind_and_by_rail() -> None:
    assert nccl_lines.types_differ("fe80::1", "::ffff:10.0.0.1")
    assert not nccl_lines.types_differ("fe80::1", "")
    assert nccl_lines.rails_differ("::ffff:10.1.0.1", "::ffff:10.2.0.1")
    assert not nccl_lines.rails_differ("::ffff:10.1.0.1", "::ffff:10.1.0.2")


OLD = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, TensorShape=[4, 2], "
    "Timeout(ms)=1800000) ran for 1800042 milliseconds before timing out."
)
NEW = (
    "[PG ID 1 PG GUID 1(tp) Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=_ALLGATHER_BASE, NumelIn=4, NumelOut=32, Timeout(ms)=600000) ran for 600042 milliseconds before timing out."
)


def test_a_watchdogs_line_is_read_in_each_form() -> None:
    assert torch_lines.timed_out_work(OLD) == TimedOutWork(3, None, "ALLREDUCE", None, "4, 2")
    group = "ID 1 PG GUID 1(tp)"
    assert torch_lines.timed_out_work(NEW) == TimedOutWork(3, 7, "_ALLGATHER_BASE", 4, "", group)
    assert torch_lines.timed_out_work("loss 2") is None


@each_row(
    "text",
    [
        "[PG 0 Rank 1] Timeout at NCCL work: 9, last enqueued NCCL work: 6, last completed NCCL work: 5.",
        "[PG 0 Rank 1]  failure detected by watchdog at work sequence id: 9 PG status: last enqueued work: 6, last "
        "completed work: 5",
        "[PG 0 Rank 1] Received a dump signal due to a collective timeout. Last enqueued NCCL work: 6, last completed "
        "NCCL work: 5.",
    ],
)
def test_how_far_a_rank_came_is_read_in_each_form(text: str) -> None:
    assert torch_lines.progress(text) == Progress(1, "0", 6, 5)


@each_row(
    ("text", "said"),
    [
        ("Timed out after 601 seconds waiting for clients. 15/16 clients joined.", Waited(15, 16)),
        (
            "Timed out initializing process group in store based barrier on rank: 0, for key: "
            "store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)",
            Waited(1, 2),
        ),
        ("Waiting in store based barrier (world_size=2, num_workers_joined=1)", None),
    ],
)
def test_who_came_to_a_store_is_read(text: str, said: Waited | None) -> None:
    assert torch_lines.waited(text) == said


def test_ranks_are_compared_within_their_process_group() -> None:
    works = [TimedOutWork(rank, 7, "ALLREDUCE", 4, group="0") for rank in (0, 1, 3)]
    (hang,) = hangs(works, [Progress(2, "0", 6, 6)], world_size=4)
    assert (hang.late, hang.silent, hang.differ) == ((2,), (2,), "")
    tensor_parallel = TimedOutWork(0, 9, "BROADCAST", 1, group="1 (tp)")
    assert [each.group for each in hangs([*works, tensor_parallel], [])] == ["0", "1 (tp)"]


def test_texts_are_read_on_from_a_literal() -> None:
    assert (between("a=1, b=2", "a=", ","), between("a=1", "a=", ","), between("a=1", "b=")) == ("1", "1", "")
    assert (number("12x"), number("-3"), number("x"), number("-"), number("1" * 40)) == (
        12,
        -3,
        None,
        None,
        int("1" * 12),
    )
    assert address_of(" [10.0.0.1]<4>") == "10.0.0.1"
