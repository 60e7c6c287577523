#!/usr/bin/env python3
"""Try the alert rules and the dashboard in a real Prometheus, on what real runs write; print the outcome as Markdown.

Needs prometheus and node_exporter (Debian: prometheus, prometheus-node-exporter) and torch. A doctor with a planted
setting and a sweep of which too much is expected write their files into a folder of node_exporter's textfile collector;
both servers listen on ports of their own here, scrape each second, and alerts fire after two seconds, not minutes.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from child import ROOT, ask, fail, run_script

FOLDER = ROOT / "ncclprobe" / "deploy" / "prometheus"
WANTED = {"NcclprobeCheckFails", "NcclprobeBandwidthBelowThreshold", "NcclprobeFileUnreadable"}
DEADLINE_S = 60.0
RUN_S = 120.0
EXPECT = '[[expect]]\nop = "all_reduce"\nnbytes = "1M"\nbusbw_GBps = 1000.0\nsource = "planted"\nwhy = "too much"\n'
CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: node
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def main() -> int:
    """Play it, and print tables of the alerts that fired and of what each panel shows; 1 where one did not come."""
    programs = {name: shutil.which(name) for name in ("prometheus", "prometheus-node-exporter")}
    if missing := [name for name, path in programs.items() if path is None]:
        fail(f"{', '.join(missing)}: not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_files(folder)
        exporter, port = _port(), _port()
        textfile = f"--collector.textfile.directory={folder}/textfile"
        listen = f"--web.listen-address=127.0.0.1:{exporter}"
        with _server([str(programs["prometheus-node-exporter"]), textfile, listen], folder):
            (folder / "prometheus.yml").write_text(CONFIG.format(port=exporter))
            rules = re.sub(r"\bfor: \w+", "for: 2s", (FOLDER / "rules.yaml").read_text())
            (folder / "rules.yaml").write_text(rules)
            options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
            listen = f"--web.listen-address=127.0.0.1:{port}"
            with _server([str(programs["prometheus"]), *options, listen], folder):
                fired = _fired(port)
                print(*_about(programs), "", *_alerts(fired), "", *_panels(port), sep="\n")
    return 0 if {alert["labels"]["alertname"] for alert in fired} >= WANTED else 1


def _write_files(folder: Path) -> None:
    """Let real runs write what is wrong, and put a file there that no collector can read."""
    (folder / "textfile").mkdir()
    (folder / "expect.toml").write_text(EXPECT)
    doctor = ["doctor", "--local", "--backend", "gloo", "--prometheus", f"{folder}/textfile/doctor.prom"]
    sweep = ["bandwidth", "--backend", "gloo", "--nproc", "2", "-b", "1M", "-e", "1M", "--expect"]
    sweep += [f"{folder}/expect.toml", "--prometheus", f"{folder}/textfile/bandwidth.prom"]
    os.environ["NCCL_IB_DISABLE"] = "true"
    for words in (doctor, sweep):
        code, line = ask([sys.executable, "-m", "ncclprobe", *words, "--no-config", "-q"], deadline_s=RUN_S)
        if code != 4:
            fail(f"{words[0]}: exit {code} instead of 4: {line}")
    (folder / "textfile" / "broken.prom").write_text("no metric at all\n")


@contextmanager
def _server(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            server.kill()
            server.wait(DEADLINE_S)


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _asked(port: int, path: str, **words: str) -> Any:
    """Return what Prometheus answers; None while it does not."""
    try:
        address = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(address, timeout=5.0) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def _fired(port: int) -> list[dict[str, Any]]:
    """Wait until all that was planted has fired; return the alerts that fire."""
    end_s = time.monotonic() + DEADLINE_S
    while True:
        found = [each for each in (_asked(port, "alerts") or {"alerts": []})["alerts"] if each["state"] == "firing"]
        if {each["labels"]["alertname"] for each in found} >= WANTED or time.monotonic() > end_s:
            return found
        time.sleep(0.5)


def _about(programs: dict[str, str | None]) -> Iterator[str]:
    for path in programs.values():
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30, check=True)
        yield f"- {(done.stdout or done.stderr).splitlines()[0]}"


def _alerts(fired: list[dict[str, Any]]) -> Iterator[str]:
    yield "| alert | summary | leads to |"
    yield "|---|---|---|"
    for each in sorted(fired, key=lambda each: str(each["labels"])):
        about = each["annotations"]
        summary = re.sub(r"127\.0\.0\.1:\d+", "NODE", about["summary"])
        yield f"| {each['labels']['alertname']} | {summary} | {about.get('runbook_url', '')} |"


def _panels(port: int) -> Iterator[str]:
    """What each expression of the dashboard gives, with its variables as Grafana would put them in."""
    yield "| panel | series | for example |"
    yield "|---|---:|---|"
    for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$job", ".*").replace("$instance", ".*")
            text = text.replace("$op", "all_reduce").replace("$nbytes", "1048576")
            found = (_asked(port, "query", query=text) or {"result": []})["result"]
            example = found[0]["value"][1] if found else "none"
            yield f"| {panel['title']} | {len(found)} | {example} |"


if __name__ == "__main__":
    run_script(main)
