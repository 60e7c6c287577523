"""What every value type promises: findings, facts, rows and reports alike rely on it, in memory and as JSON."""

import copy
import json
from typing import Any

import msgspec
import pytest

from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.pci import Pci
from ncclprobe.localise.pairs.samples import End, Sample
from ncclprobe.model.findings import Evidence, Finding, Severity, Status, Verdict, warn
from ncclprobe.model.nccl_selection import Decision, InterfaceChoice, NvlsChoice
from ncclprobe.model.snapshot import Absent, Every, Job, Snapshot
from ncclprobe.model.values import asdict, replace
from tests.each_row import each_row, some

DENIED = Absent("permission denied", "Denied")
FINDING = warn("mlx5_0:1", "is DOWN", blame="link", action="repair", evidence=(Evidence("/sys/x", 3, "1: DOWN"),))
VERDICT = Verdict("ib.state", "n1", Status.WARN, "a port is down", findings=(FINDING,))
SAMPLE = Sample(End("a", "x"), End("b", "x"), 2.0)
VALUES = [DENIED, FINDING, VERDICT, Job(), Decision((NvlsChoice(None, "no GPU"),), "two"), SAMPLE]


@each_row("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_equal_by_their_fields_hash_accordingly_and_cannot_be_changed(value: Any) -> None:
    same = copy.deepcopy(value)
    assert same == value
    assert len({same, value}) == 1
    for name in some(type(value).__match_args__):
        with pytest.raises(AttributeError):
            setattr(value, name, "other")


def test_values_differ_by_any_field_and_by_their_type_and_by_a_mapping() -> None:
    assert Absent("a") != Absent("b")
    assert Absent("a", "Denied") != Absent("a", "Missing")
    assert Absent("a", "b") != ("a", "b")
    assert NvlsChoice(None, "no GPU") != Decision(None, "no GPU")
    assert Settings(effective={}) == Settings()
    with pytest.raises(TypeError, match="unhashable"):
        hash(Settings())
    nan = float("nan")
    assert Decision((nan,), "") == Decision((nan,), "")
    assert Decision((nan,), "") != Decision((float("nan"),), "")


def test_replacing_makes_another_value_and_refuses_what_making_refuses() -> None:
    other = replace(FINDING, severity=Severity.FAIL)
    assert (other.severity, FINDING.severity) == (Severity.FAIL, Severity.WARN)
    assert replace(other, severity=Severity.WARN) == FINDING
    with pytest.raises(TypeError):
        replace(DENIED, because="no such field")
    with pytest.raises(ValueError, match="is not a rate"):
        replace(SAMPLE, GBps=-1.0)


def test_a_default_mapping_belongs_to_one_value_and_what_is_not_known_is_not_false() -> None:
    assert Absent("")  # as an empty answer is
    assert Absent("") != ""
    assert Pci().devices == {}
    assert Pci().devices is not Pci().devices
    assert Snapshot("n1", {}).ranks is not Snapshot("n1", {}).ranks


def test_a_value_as_json_has_every_field_by_its_name_in_order_and_reads_back() -> None:
    choice = Decision((InterfaceChoice("eth0", "10.0.0.1", "socket", "the first"),), "found")
    rows = '[{"name":"eth0","address":"10.0.0.1","step":"socket","why":"the first"}]'
    text = f'{{"chosen":{rows},"why":"found","refused":false,"subject":""}}'
    assert msgspec.json.encode(choice).decode() == text
    assert json.dumps(asdict(choice), separators=(",", ":")) == text
    assert msgspec.json.decode(text, type=Decision[InterfaceChoice]) == choice
    assert msgspec.json.decode(msgspec.json.encode(VERDICT), type=Verdict) == VERDICT
    with pytest.raises(msgspec.ValidationError, match="severity"):
        msgspec.convert({"severity": "sad"}, Finding)
    denied = {"type": "Absent", "why": "permission denied", "refused": "Denied"}
    assert asdict(Every({"n1": DENIED})) == {"by_node": {"n1": denied}}
    assert asdict(Decision((DENIED,), "")) == {"chosen": (denied,), "why": "", "refused": False, "subject": ""}
