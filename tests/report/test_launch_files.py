"""The launch files for Kubernetes and GitHub: valid, and what they say about exit codes is what happens."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.cluster.rendezvous import token
from ncclprobe.model.findings import ExitCode
from tests.each_row import each_row, some

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "ncclprobe" / "deploy"
MANIFESTS = sorted(DEPLOY.glob("kubernetes_*.yaml"))


def jobs(path: Path) -> list[dict[str, Any]]:
    """The Jobs in a manifest; those of a JobSet, whose own kind no list of Kubernetes' schemas has."""
    found = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] != "Secret"]
    sets = [part for each in found if each["kind"] == "JobSet" for part in each["spec"]["replicatedJobs"]]
    head = {"apiVersion": "batch/v1", "kind": "Job"}
    own = [{**head, "metadata": {"name": each["name"]}, **each["template"]} for each in sets]
    return [each for each in found if each["kind"] != "JobSet"] + own


def test_pods_that_meet_have_a_secret_and_the_one_in_the_manifest_is_refused() -> None:
    secret, jobset = yaml.safe_load_all((DEPLOY / "kubernetes_jobset.yaml").read_text())
    (job,) = (each["template"] for each in jobset["spec"]["replicatedJobs"])
    (variable,) = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert variable["name"] == token.VARIABLE
    place = variable["valueFrom"]["secretKeyRef"]
    assert place["name"] == secret["metadata"]["name"]
    assert len(secret["stringData"][place["key"]]) < token.LEAST_CHARACTERS


@each_row("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_takes_a_manifest_whose_policy_maps_every_exit_code_and_retries_no_wrong_usage(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for job in some(jobs(path)):
        assert validate.validate(job, "1.31", strict=True)
        rules = job["spec"]["podFailurePolicy"]["rules"]
        mapped = {code: rule["action"] for rule in rules for code in rule.get("onExitCodes", {}).get("values", ())}
        assert mapped[ExitCode.USAGE] == "FailJob"
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
        counted = {int(code) for code in ExitCode} - {0}
        assert counted == set(mapped) or (job["spec"]["backoffLimit"] == 0 and {2, 4} == set(mapped))


def scripts(path: Path) -> list[str]:
    pods = [job["spec"]["template"]["spec"] for job in jobs(path)]
    boxes = [box for pod in pods for box in [*pod.get("initContainers", []), *pod["containers"]]]
    return [box["args"][0] for box in boxes if box.get("args")]


def told(folder: Path, script: str, code: int, **variables: str) -> "subprocess.CompletedProcess[str]":
    """`script` where ncclprobe writes down its arguments and leaves with `code`."""
    command = folder / "ncclprobe"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{folder}/asked\nexit {code}\n')
    command.chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "GPUS": "8", "JOB_COMPLETION_INDEX": "2", **variables}
    return subprocess.run(["bash", "-e", "-c", script], env=env, cwd=folder, capture_output=True, text=True, timeout=30)


@each_row("path", MANIFESTS, ids=lambda path: path.stem)
@each_row("code", [0, 1, 2, 3, 4])
def test_a_container_leaves_with_ncclprobes_code(tmp_path: Path, path: Path, code: int) -> None:
    for script in scripts(path):
        left = told(tmp_path, script, code, NCCLPROBE_STRICT="1").returncode
        assert left == code, script
    if path.stem == "kubernetes_init":
        for word in ("", "0"):
            done = told(tmp_path, scripts(path)[0], code, NCCLPROBE_STRICT=word)
            assert done.returncode == (0 if code == 3 else code)


def github_step(name: str) -> str:
    job = yaml.safe_load((DEPLOY / "github_actions.yaml").read_text())["jobs"]["ncclprobe"]
    (found,) = [step["run"] for step in job["steps"] if step["name"] == name]
    return str(found)


@each_row(("code", "strict", "left"), [(0, "", 0), (3, "", 0), (3, "true", 3), (4, "", 4), (1, "", 1)])
def test_github_sees_an_inconclusive_run_as_a_warning(tmp_path: Path, code: int, strict: str, left: int) -> None:
    done = told(tmp_path, github_step("Look"), code, BACKEND="gloo", STRICT=strict)
    assert done.returncode == left
    assert ("::warning" in done.stdout) is (code == 3 and not strict)
