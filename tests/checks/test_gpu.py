"""The GPUs' own checks: what they say of codes and states, and what they keep quiet about."""

import pytest

from ncclprobe.checks.gpu import at, blanks
from ncclprobe.checks.gpu.driver import BOX, BUS, FELL, log, xid
from ncclprobe.checks.gpu.siblings import METAL, NO_LINKS, TREE, TWO, access, model, p2p
from ncclprobe.checks.gpu.state import GIB, HEALTHY, box, busy, mig, remap, throttle
from ncclprobe.engine.judge import judge
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.kernel_log import Event
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Severity, Status
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.report.digest import copyable
from tests.checks.cases.gpu import CLEARED, DESKTOP, GUEST, NO_SUCH_THING, REFUSED
from tests.each_row import each_row

LOST = replace(HEALTHY, lost="NVML nvmlDeviceGetMemoryInfo: GPU is lost")


def grave(findings: list[Finding]) -> dict[str, Severity]:
    return {f.subject: f.severity for f in findings if f.severity is not Severity.NOTE}


def test_a_reason_that_one_gpu_does_not_tell_is_named_and_the_others_are_judged() -> None:
    hot = replace(HEALTHY, throttle=("hw-thermal-slowdown",))
    findings = list(throttle.run(box(hot, replace(HEALTHY, throttle=REFUSED), HEALTHY)))
    assert [(f.severity, f.subject) for f in findings] == [(Severity.WARN, "GPU0"), (Severity.NOTE, "GPU1")]


def test_where_no_gpu_tells_nothing_passes() -> None:
    with pytest.raises(Unlearned, match="Unknown Error"):
        list(throttle.run(box(replace(HEALTHY, throttle=REFUSED))))


def test_a_node_whose_gpus_are_all_lost_passes_no_check_of_their_state() -> None:
    facts = {Gpus: box(LOST, LOST), Launch: Launch()}
    verdicts = judge([Snapshot("n", facts)], [throttle, remap, busy, mig], Job())
    assert {v.status for v in verdicts} == {Status.UNKNOWN}


def test_gpus_that_cannot_remap_rows_are_no_unknown() -> None:
    old = replace(HEALTHY, remap_pending=NO_SUCH_THING, remap_failed=NO_SUCH_THING)
    (verdict,) = judge([Snapshot("n", {Gpus: box(old, old)})], [remap], Job())
    assert verdict.status is Status.SKIP
    refused = replace(HEALTHY, remap_pending=REFUSED, remap_failed=REFUSED)
    (verdict,) = judge([Snapshot("n", {Gpus: box(refused)})], [remap], Job())
    assert verdict.status is Status.UNKNOWN


@each_row("rule", [throttle, remap, busy, mig, p2p, xid], ids=lambda rule: rule.key)
def test_jobs_on_processors_do_not_ask_for_gpus(rule: object) -> None:
    (verdict,) = judge([Snapshot("n", {})], [rule], Job("gloo"))  # type: ignore[list-item]
    assert verdict.status is Status.SKIP


@each_row("text", ["0,2", "GPU-8a31,GPU-8c", "GPU-8a31-0,GPU-8c31-2"])
def test_a_gpu_that_the_job_does_not_see_is_not_compared_however_the_others_are_named(text: str) -> None:
    uuids = ("GPU-8a31-0", "GPU-8b31-1", "GPU-8c31-2")
    gpus = box(*(replace(HEALTHY, name="V100" if n == 1 else "H100", uuid=uuid) for n, uuid in enumerate(uuids)))
    assert grave(list(model.run(gpus, Environment({})))) == {"GPU1": Severity.WARN}
    assert grave(list(model.run(gpus, Environment({"CUDA_VISIBLE_DEVICES": text})))) == {}


def test_a_small_process_such_as_a_monitor_is_a_note() -> None:
    (finding,) = busy.run(box(replace(HEALTHY, processes=(None, 30 << 20))))
    assert finding.severity is Severity.NOTE
    assert "2 processes" in finding.message


def test_memory_in_use_that_nobody_owns_is_told_as_such() -> None:
    (finding,) = busy.run(box(replace(HEALTHY, memory_used_bytes=40 * GIB)))
    assert finding.severity is Severity.WARN
    assert "no process visible to NVML" in finding.message


def test_mig_on_some_gpus_only_names_both_kinds() -> None:
    (finding,) = mig.run(box(replace(HEALTHY, mig=True), HEALTHY), Launch())
    assert (finding.severity, finding.subject) == (Severity.WARN, "GPU0")
    assert "GPU1 is not" in finding.message


@each_row(
    ("code", "severity"),
    [
        *((code, Severity.FAIL) for code in ("48", "64", "74", "79", "95", "119", "120", "140")),
        *((code, Severity.WARN) for code in ("62", "92", "94", "109")),
        *((code, Severity.NOTE) for code in ("13", "31", "43", "45", "63", "121", "999")),
    ],
)
def test_an_xid_is_judged_by_its_code(code: str, severity: Severity) -> None:
    (finding,) = xid.run(log(Event(7000.0, "xid", BUS, code, "text")), BOX)
    assert (finding.subject, finding.severity) == ("GPU0", severity)
    assert finding.message.startswith(f"Xid {code}: ")


@each_row("code", [str(code) for code in range(144, 151)])
def test_blackwells_nvlink_xids_are_judged_by_what_they_say_of_themselves(code: str) -> None:
    event = Event(7000.0, "xid", BUS, code, "", fatal=True)
    assert grave(list(xid.run(log(event), BOX))) == {"GPU0": Severity.FAIL}
    assert grave(list(xid.run(log(replace(event, fatal=False)), BOX))) == {}
    both = log(event, replace(event, fatal=False, at_s=7100.0))
    assert grave(list(xid.run(both, BOX))) == {"GPU0": Severity.FAIL}


def test_an_old_xid_warns_and_one_that_a_reset_has_cleared_is_a_note() -> None:
    old = replace(FELL, at_s=100.0)
    assert grave(list(xid.run(log(old, uptime_s=300_000.0), BOX))) == {"GPU0": Severity.WARN}
    assert grave(list(xid.run(log(FELL, CLEARED), BOX))) == {}
    again = replace(FELL, at_s=5000.0)
    assert grave(list(xid.run(log(FELL, CLEARED, again), BOX))) == {"GPU0": Severity.FAIL}


def test_many_events_of_one_kind_are_one_finding_with_the_last_ones_age() -> None:
    (finding,) = xid.run(log(*(replace(FELL, at_s=3600.0 + n) for n in range(50)), uptime_s=7300.0), BOX)
    assert "50 times, last 1 hour ago" in finding.message


def test_whose_process_it_was_is_not_told() -> None:
    event = Event(7000.0, "xid", BUS, "31", "pid=4711, name=secret_model, Ch 00000008, intr 00000000. MMU Fault")
    (finding,) = xid.run(log(event), BOX)
    assert "secret" not in finding.seen
    assert "4711" not in finding.seen
    assert "MMU Fault" in finding.seen


def test_a_log_that_begins_late_says_so() -> None:
    late = replace(log(uptime_s=100_000.0), oldest_s=90_000.0)
    (finding,) = xid.run(late, BOX)
    assert (finding.severity, finding.message) == (Severity.NOTE, "begins 2 hours ago: earlier messages are not known")


def test_an_address_without_function_finds_its_gpu_and_a_foreign_one_stays() -> None:
    assert at("00000000:07:00", BOX) == at("0000:07:00", BOX) == at("0000:07:00.0", BOX) == "GPU0"
    assert at("0000:17:00", BOX) == "0000:17:00"
    assert at("0000:07:00", Absent("no NVML")) == "0000:07:00"


def test_peers_of_products_without_p2p_or_in_a_guest_are_at_most_a_note() -> None:
    for gpus, machine in ((DESKTOP, METAL), (TWO, GUEST)):
        assert grave(list(p2p.run(gpus, access("CNS", "NS"), TREE, NO_LINKS, machine))) == {}


def test_one_direction_denied_is_a_denial() -> None:
    good = access("OK", "OK")
    half = PeerAccess(good.read, {**good.write, (1, 0): "NS"}, good.nvlink)
    assert grave(list(p2p.run(TWO, half, TREE, NO_LINKS, METAL))) == {"GPU0 and GPU1": Severity.FAIL}


def test_nothing_is_said_to_go_through_host_memory_where_nccl_gives_up() -> None:
    """NVML denies the pair everything, and its links lead to one another."""
    both = ((NvLink(0, "active", remote="gpu", remote_pci=f"00000000:0{4 - n}:00.0"),) for n in range(2))
    found = list(p2p.run(TWO, access("NS", "NS"), TREE, NvLinks(tuple(both)), METAL))
    assert [(each.subject, each.severity) for each in found] == [("GPU0 and GPU1", Severity.FAIL)]


def test_no_remedy_types_the_setting_that_hides_the_fault() -> None:
    assert "NCCL_IGNORE_DISABLED_P2P" in p2p.fix
    assert not [each for each in copyable(p2p.fix) if "NCCL_IGNORE_DISABLED_P2P" in each]


def test_a_table_of_peers_that_is_all_unknown_does_not_pass() -> None:
    gap = Absent("NVML nvmlDeviceGetP2PStatus: Function Not Found", "Missing")
    silent = PeerAccess(*({(0, 1): gap, (1, 0): gap} for _ in range(3)))
    with pytest.raises(Unlearned):
        list(p2p.run(TWO, silent, TREE, NO_LINKS, METAL))


def test_blanks_are_named_once() -> None:
    (finding,) = blanks({"GPU1": Absent("why"), "GPU3": Absent("why")}, 4, "NVML")
    assert (finding.subject, finding.message) == ("GPU1, GPU3", "not looked at: why")


def test_of_a_slowdown_with_a_known_cause_the_cause_is_told() -> None:
    (finding,) = throttle.run(box(replace(HEALTHY, throttle=("hw-slowdown", "hw-power-brake-slowdown"))))
    assert finding.message == "the power supply asks it to slow down (power brake)"
    (finding,) = throttle.run(box(replace(HEALTHY, throttle=("hw-slowdown",))))
    assert finding.message == "the hardware has lowered its clocks"
