"""Names that nobody reads: few are compared with NCCL's, many are counted."""

from ncclprobe.checks.env.names import unknown_var
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.findings import Severity
from ncclprobe.model.report import Setting


def test_thousands_of_strange_names_are_not_all_compared() -> None:
    names = [f"NCCL_STRANGE_{n:05}" for n in range(5000)]
    settings = Settings({name: Setting(name, None, f"/etc/nccl.conf:{n}") for n, name in enumerate(names, start=1)})
    findings = list(unknown_var.run(settings))
    assert len(findings) == 101
    assert {f.severity for f in findings} == {Severity.NOTE}
    assert "and 4900 more names, to NCCL_STRANGE_04999" in findings[0].message
