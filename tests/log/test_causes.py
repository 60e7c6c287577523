"""From logs to causes: which finding explains which."""

import pytest

from ncclprobe.engine.diagnose import LEFT, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.facts.files.job_log import JobLog
from ncclprobe.facts.files.log_reader import read
from ncclprobe.localise.causes import causes
from ncclprobe.model.causes import Cause
from ncclprobe.model.snapshot import Job

CHECKS = every_check(LEFT)
RULES = {check.id: check.cause for check in CHECKS if check.cause}
SIGNS = [sign for rule in RULES.values() for sign in rule.signs]


def explained(**logs: str) -> tuple[Cause, ...]:
    log = read(((name, [text.encode()]) for name, text in logs.items()), SIGNS)
    return causes(judge([], CHECKS, Job(), {JobLog: log}), RULES)


NO_INTERFACE = "node1:77:77 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found\n"
UNHANDLED = "[rank3]: DistBackendError: NCCL error in: x.cpp:1, unhandled system error\n"


def test_a_cause_stands_first_and_its_consequence_beneath_it() -> None:
    (found,) = explained(rank3=NO_INTERFACE + UNHANDLED)
    assert (found.code, found.id, found.confidence) == ("iface-missing", "log.no-interface", "named")
    assert [each.id for each in found.consequences] == ["log.nccl-returned-an-error"]
    assert (found.evidence[0].source, found.evidence[0].line) == ("rank3", 1)
    assert found.doctor == "env.ifname-match"


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


@pytest.mark.parametrize("text", ["", "\0\0", "[rank3]:", "\x1b[31m"])
def test_any_text_is_a_log(text: str) -> None:
    assert explained(any=text) == ()
