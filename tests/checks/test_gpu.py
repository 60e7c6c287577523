"""The GPUs' own checks: what they say of codes and states, and what they keep quiet about."""

from ncclprobe.checks.gpu import at, blanks
from ncclprobe.checks.gpu.driver import BOX, BUS, log, xid
from ncclprobe.checks.gpu.siblings import model, p2p
from ncclprobe.checks.gpu.state import HEALTHY, box, busy, mig, remap, throttle
from ncclprobe.engine.judge import judge
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.kernel_log import Event
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.findings import Finding, Severity, Status
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.report.digest import copyable
from tests.checks.cases.gpu import NO_SUCH_THING, REFUSED
from tests.each_row import each_row

LOST = replace(HEALTHY, lost="NVML nvmlDeviceGetMemoryInfo: GPU is lost")


def grave(findings: list[Finding]) -> dict[str, Severity]:
    return {f.subject: f.severity for f in findings if f.severity is not Severity.NOTE}


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


def test_whose_process_it_was_is_not_told() -> None:
    event = Event(7000.0, "xid", BUS, "31", "pid=4711, name=secret_model, Ch 00000008, intr 00000000. MMU Fault")
    (finding,) = xid.run(log(event), BOX)
    assert "secret" not in finding.seen
    assert "4711" not in finding.seen
    assert "MMU Fault" in finding.seen


def test_an_address_without_function_finds_its_gpu_and_a_foreign_one_stays() -> None:
    assert at("00000000:07:00", BOX) == at("0000:07:00", BOX) == at("0000:07:00.0", BOX) == "GPU0"
    assert at("0000:17:00", BOX) == "0000:17:00"
    assert at("0000:07:00", Absent("no NVML")) == "0000:07:00"


def test_no_remedy_types_the_setting_that_hides_the_fault() -> None:
    assert "NCCL_IGNORE_DISABLED_P2P" in p2p.fix
    assert not [each for each in copyable(p2p.fix) if "NCCL_IGNORE_DISABLED_P2P" in each]


def test_blanks_are_named_once() -> None:
    (finding,) = blanks({"GPU1": Absent("why"), "GPU3": Absent("why")}, 4, "NVML")
    assert (finding.subject, finding.message) == ("GPU1, GPU3", "not looked at: why")


def test_of_a_slowdown_with_a_known_cause_the_cause_is_told() -> None:
    (finding,) = throttle.run(box(replace(HEALTHY, throttle=("hw-slowdown", "hw-power-brake-slowdown"))))
    assert finding.message == "the power supply makes it slow down (power brake)"
    (finding,) = throttle.run(box(replace(HEALTHY, throttle=("hw-slowdown",))))
    assert finding.message == "the hardware has lowered its clocks"
