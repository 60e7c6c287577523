"""The table of messages: every line of it is found again, and its meaning is what `explain` makes of the line."""

import re
from collections.abc import Mapping

from ncclprobe.checks import log as rules
from ncclprobe.checks.log.known import follows, harmless, understood
from ncclprobe.engine.diagnose import LEFT, every_check
from ncclprobe.engine.job_files import judged
from ncclprobe.logs import messages
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.messages import MessageRow
from ncclprobe.logs.ranks import joined
from ncclprobe.logs.reader import Reader
from ncclprobe.model.snapshot import Job
from tests.each_row import each_row, some

ROWS = list(messages.rows())
CHECKS = [check for check in every_check(LEFT) if check.cause or check.id == "log.unexplained"]
READER = Reader([sign for check in CHECKS if check.cause for sign in check.cause.signs])
CODES = {*re.findall(r"``([a-z0-9-]+)``", rules.__doc__ or "")}
HELD = {
    "rank": "1", "peer": "3", "number": "7", "address": "10.0.0.7<4321>", "device": "mlx5_0", "error": "Frobnicated",
    "text": "eth0", "host": "n7"}  # fmt: skip


def whole(logs: Mapping[str, str]) -> JobLog:
    """Return logs as they are read in earnest: with the signs of all checks, those of the table among them."""
    return joined([READER.read_one(name, [text.encode()]) for name, text in logs.items()])


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
        ("Something went wrong", "WARN", ""), ("MPI_ABORT was invoked on rank 1 in communicator", "", "consequence"),
        ("Call to ibv_create_qp failed", "INFO", ""), ("failed Call to ibv_create_qp", "WARN", ""),
        ("FlashAttention is not available.", "WARN", ""),
    ])  # fmt: skip
def test_a_line_has_the_meaning_of_the_message_with_most_fixed_text(text: str, level: str, meaning: str) -> None:
    found = messages.said(text, level)
    assert (found.row.meaning if found else "") == meaning
    event = LogEvent(0, 1, text, level=level)
    assert (follows(event), understood(event)) == (meaning == "consequence", meaning not in ("", "?"))


def test_every_sign_of_the_table_is_of_one_of_its_messages() -> None:
    (signs,) = [check.cause.signs for check in CHECKS if check.id == "log.known-message" and check.cause]
    assert signs
    assert all(any(sign in part for row in ROWS for part in (row.place, *messages.parts(row.text))) for sign in signs)


def test_holes_are_read_by_their_kinds() -> None:
    found = messages.message("[Proxy Service 5] Failed to execute operation Connect from rank 3, retcode 6")
    assert found
    assert (found.held("rank"), found.held("peer"), found.held("address")) == ("5", "3", "")
    assert messages.message("Call to " * 500 + "from rank " * 500) is None  # in a moment


@each_row(("head", "level"), [("[n1:7:0] ib_log.c:246 UCX ERROR mlx5_0: ", ""), ("", "ERROR")])
def test_a_call_that_another_library_names_is_no_word_of_nccls(head: str, level: str) -> None:
    assert messages.said("ibv_create_cq() failed: Cannot allocate memory", "WARN")
    assert messages.said(f"{head}ibv_create_cq() failed: Cannot allocate memory", level) is None
