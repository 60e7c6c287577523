"""Names that no library reads: few are compared with NCCL's, many are counted, and a newer NCCL may know more."""

from ncclprobe.checks.env.fixtures import NO_NCCL, nccl, setting
from ncclprobe.checks.env.values import unknown_var
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.findings import Severity
from ncclprobe.model.report import Setting
from tests.each_row import each_row


def test_thousands_of_strange_names_are_not_all_compared() -> None:
    names = [f"NCCL_STRANGE_{n:05}" for n in range(5000)]
    settings = Settings({name: Setting(name, None, f"/etc/nccl.conf:{n}") for n, name in enumerate(names, start=1)})
    findings = list(unknown_var.run(settings, NO_NCCL))
    assert len(findings) == 101
    assert {f.severity for f in findings[1:]} == {Severity.WARN}
    assert "and 4900 more names up to NCCL_STRANGE_04999" in findings[0].message


@each_row("name", ["NCCL_SOCKET_IFNAMES", "NCCL_ENTIRELY_NEW"])
def test_a_strange_name_is_a_note_where_the_loaded_nccl_is_newer_than_the_table(name: str) -> None:
    (finding,) = unknown_var.run(setting(name, "1"), nccl(2, 99, 1))
    assert finding.severity is Severity.NOTE
    assert "is newer and may read it" in finding.message


def test_a_strange_name_of_torch_is_misspelt_whatever_nccl_is_loaded() -> None:
    (finding,) = unknown_var.run(setting("TORCH_NCCL_TRACE_BUFER_SIZE", "1"), nccl(2, 99, 1))
    assert finding.severity is Severity.WARN
