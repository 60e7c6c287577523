"""Alert rules and dashboard ask for metrics that are written, promtool plays them, and all metrics are documented."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from conftest import ROOT
from prometheus_client.parser import text_string_to_metric_families
from report.samples import SICK, fleet

from ncclprobe import DOCS, page
from ncclprobe.model.findings import Status
from ncclprobe.model.report import Area
from ncclprobe.model.values import replace
from ncclprobe.report import prometheus
from tests.each_row import each_row, some

FOLDER = ROOT / "ncclprobe" / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool")
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())


def written() -> dict[str, set[str]]:
    """Every metric with the labels of its samples."""
    found: dict[str, set[str]] = {}
    way = Area("transport", "NCCL → IB 8 × 400 Gb/s, GPUDirect", Status.PASS)
    for made in (SICK, fleet(3, 1), replace(SICK, areas=(way,))):
        for family in text_string_to_metric_families(prometheus.render(made)):
            labels = found.setdefault(family.name, set())
            labels |= {label for sample in family.samples for label in sample.labels}
    return found


def expressions() -> Iterator[str]:
    """All PromQL of the rules and the dashboard."""
    yaml = pytest.importorskip("yaml")
    for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query")


def test_rules_and_dashboard_ask_for_metrics_and_labels_that_are_written() -> None:
    there = written()
    for text in some(expressions()):
        for name, selector in re.findall(r"(ncclprobe_\w+)(\{[^}]*\})?", text):
            assert name in there, text
            assert set(re.findall(r"(\w+)=", selector)) <= there[name] | {"instance", "job"}, text
        for labels in re.findall(r"(?:on|by) \(([^)]*)\)", text):
            assert set(labels.split(", ")) <= {"instance", "job"}.union(*there.values()), text


def test_every_metric_is_asked_for_by_an_alert_or_the_dashboard_but_for_those_that_only_describe() -> None:
    asked = {name for text in expressions() for name in re.findall(r"ncclprobe_\w+", text)}
    assert written().keys() - asked == {"ncclprobe_run_info", "ncclprobe_rows", "ncclprobe_transport_info"}


def test_the_alerts_lead_to_pages_of_the_documentation() -> None:
    from ncclprobe.engine.diagnose import every_check

    urls = re.findall(r"runbook_url: (\S.*)$", (FOLDER / "rules.yaml").read_text(), re.MULTILINE)
    known = {page(check.id) for check in every_check()}
    assert set(urls) - known == {f"{DOCS}/checks/#{{{{ $labels.check }}}}"}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
@each_row("words", [("check", "rules", "rules.yaml"), ("test", "rules", "rules_test.yaml"), ("check", "metrics")])
def test_promtool_takes_the_rules_and_the_metrics_and_plays_every_alert(words: tuple[str, ...]) -> None:
    text = prometheus.render(SICK)
    done = subprocess.run([str(PROMTOOL), *words], cwd=FOLDER, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert words != ("check", "metrics") or done.stdout + done.stderr == ""
