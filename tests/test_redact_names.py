"""Redaction of what a site calls its own: projects, plugins, runs, people; and what every site has, which stays."""

import json
import re
from typing import Any

import pytest
from fake_site import ANSWERS, ENV, KEY, capture
from report.samples import SICK

from ncclprobe.engine.diagnose import every_check
from ncclprobe.host import Question
from ncclprobe.host.settings import sanitised
from ncclprobe.model.values import replace
from ncclprobe.redact.redactor import Redactor
from ncclprobe.report import json as as_json
from tests.each_row import each_row, some

PROJECT = {
    "NCCL_NET_PLUGIN": "acmefast",
    "NCCL_TUNER_PLUGIN": "/fsx/projects/zebra-llm/lib/libnccl-tuner-zebra.so",
    "NCCL_TOPO_FILE": "/lustre/zebra-llm/topo.xml",
    "LD_LIBRARY_PATH": "/fsx/projects/zebra-llm/venv/lib:/opt/amazon/ofi-nccl/lib:/usr/lib64",
    "TORCHELASTIC_RUN_ID": "final-giraffe-70b",
    "PBS_JOBID": "4711.pbsqueen.example.net",
    "NCCL_DEBUG_FILE": "/scratch/giraffe/%h.%p.log",
}
KERNEL = (
    "NVRM: GPU at PCI:0000:86:00: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, GPU serial number is 0323918034573.",
    "NVRM: GPU 0000:86:00.0: GPU is on Board 0324017036525.",
    "nfs: server nas-okapi not responding, timed out",
    "mlx5_core 0000:3b:00.0 mlx5_0: SN: none, Serial Number MT2039X00123: cable",
    "oom-kill of user tapir, uid=1001(tapir2)",
)
SITE: dict[Question, Any] = ANSWERS | {
    ("env",): ENV | PROJECT,
    ("kernel_log", "x"): {"lines": [[1.5, text] for text in KERNEL]},
    ("list", "/fsx/projects/zebra-llm/lib", "libnccl*"): ["libnccl-net-acmefast.so", "libnccl.so.2.21.5"],
    ("ld_cache", "libnccl"): [["libnccl-net-acmefast.so", "/fsx/projects/zebra-llm/lib/libnccl-net-acmefast.so"]],
    ("module", "torch"): "/fsx/projects/zebra-llm/venv/lib/python3.11/site-packages/torch/__init__.py",
    ("read", "/proc/self/mountinfo"): "1 2 0:3 / /fsx rw - nfs4 nas-okapi:/export/zebra-llm rw\n",
    ("read", "/proc/self/cgroup"): "0::/system.slice/zebra-trainer.service\n",
}
SECRETS = ("acmefast", "zebra", "giraffe", "pbsqueen", "0323918034573", "0324017036525", "okapi", "tapir")


@pytest.fixture(scope="module")
def redacted() -> str:
    return Redactor(KEY).capture(capture(SITE))


@each_row("secret", SECRETS)
def test_what_a_site_calls_its_own_is_nowhere_in_a_redacted_capture(secret: str, redacted: str) -> None:
    assert secret in capture(SITE)
    assert secret not in redacted


def test_a_name_is_the_same_wherever_it_stands(redacted: str) -> None:
    rows = {tuple(row["ask"]): row["said"] for row in map(json.loads, redacted.splitlines()[1:]) if "ask" in row}
    env = json.loads(rows["env",])
    (listed,) = (json.loads(said) for ask, said in rows.items() if ask[0] == "list" and ask[-1] == "libnccl*")
    (cached,) = (json.loads(said) for ask, said in rows.items() if ask[0] == "ld_cache")
    folder = next(ask[1] for ask in rows if ask[0] == "list" and ask[-1] == "libnccl*")
    assert listed == [f"libnccl-net-{env['NCCL_NET_PLUGIN']}.so", "libnccl.so.2.21.5"]
    assert cached == [[listed[0], f"{folder}/{listed[0]}"]]
    assert env["NCCL_TUNER_PLUGIN"].startswith(f"{folder}/libnccl-tuner-name-")
    assert re.fullmatch(r"name-[0-9a-f]{10}", env["TORCHELASTIC_RUN_ID"])
    assert re.fullmatch(r"(host-[0-9a-f]{10}\.){3}net", env["PBS_JOBID"])


def test_a_public_index_stays_beside_one_of_the_site() -> None:
    redacted = Redactor(KEY).text("Looking in indexes: https://pypi.org/simple, https://pypi.zorkcorp.io/simple")
    assert "https://pypi.org/simple, https://host-" in redacted
    assert "zorkcorp" not in redacted


def test_a_sites_library_has_one_name_in_questions_answers_and_keys_and_every_sites_library_keeps_its_own() -> None:
    asked = ("libzebra.so.3", "libcublasLt.so.13", "libgcc_s.so.1")
    needs = {"libzebra.so.3": ["ZEBRA_1.2"], "libgcc_s.so.1": ["GCC_3.0", "GLIBC_ABI_DT_RELR", "GLIBCXX_3.4.29"]}
    site: dict[Question, Any] = {
        ("elf", "/opt/zebra/libnccl-net.so"): {"soname": "libnccl-net.so", "needed": asked, "needs_versions": needs},
        ("among", "/opt/zebra", *asked): ["libzebra.so.3"],
    }
    text = Redactor(KEY).capture(capture(site))
    rows = {row["ask"][0]: row for row in map(json.loads, text.splitlines()[1:])}
    elf, among = json.loads(rows["elf"]["said"]), rows["among"]
    assert "zebra" not in text.lower()
    assert elf["needed"] == among["ask"][2:]
    assert elf["needed"][1:] == list(asked[1:])
    assert list(elf["needs_versions"]) == [elf["needed"][0], "libgcc_s.so.1"]
    assert elf["needs_versions"]["libgcc_s.so.1"] == needs["libgcc_s.so.1"]
    assert json.loads(among["said"]) == elf["needed"][:1]


def test_no_word_of_a_checks_own_explanation_is_taken_for_a_sites() -> None:
    redactor = Redactor(KEY)
    addresses = re.compile(r"\d{1,3}(\.\d{1,3}){3}|NCCLPROBE_TOKEN=\S+")
    for check in some(every_check()):
        told = addresses.sub("", check.run.__doc__ or "")
        assert redactor.text(told) == told, check.id


@each_row(
    ("value", "kept"),
    [
        ("password:hunter2", "password:…"),
        ("mlx5_0 password: hunter2,mlx5_1", "mlx5_0 password: …,mlx5_1"),
        ("/x?y PASSWD=hunter2", "/x?y PASSWD=…"),
        ("api_key=hunter2&a=b", "api_key=…&a=b"),
        ("token=hunter2 secret = hunter2", "token=… secret = …"),
        ("http://u:hunter2@h/x", "http://h/x"),
        ("mlx5_0:1,mlx5_1:1", "mlx5_0:1,mlx5_1:1"),
        ("keyboard:1 passwords", "keyboard:1 passwords"),
    ],
)
def test_what_follows_a_password_is_neither_recorded_nor_left_by_redaction(value: str, kept: str) -> None:
    assert sanitised(value) == kept
    assert "hunter2" not in Redactor(KEY).text(value.replace("u:hunter2@", ""))


@each_row(
    ("text", "kept"),
    [
        ("https://jdoe:passw0rd@git.acmecorp.example/x failed", "https://…@"),
        ("Authorization: Bearer eyJhbGciOi.abc.passw0rd", "Bearer …"),
        ("s3://b/k?AWSAccessKeyId=passw0rd&Signature=passw0rd", "AWSAccessKeyId=…&Signature=…"),
        ("X-Amz-Signature=passw0rd", "X-Amz-Signature=…"),
        ("remote: ghp_16C7e42F292c6912E7710cpassw0rd", "ghp_…"),
        ("hf_abcdefghijklmnopqrpassw0rd", "hf_…"),
        ("to jdoe@acmecorp.example and passw.0rd@mail.acmecorp.example", "to user-"),
    ],
)
def test_logins_keys_and_mail_addresses_in_the_lines_of_a_log_are_hidden(text: str, kept: str) -> None:
    redacted = Redactor(KEY).text(text)
    assert kept in redacted
    for secret in ("passw0rd", "passw.0rd", "jdoe", "acmecorp"):
        assert secret not in redacted.replace("git.acmecorp.example", "")


def test_a_report_hides_a_plugin_and_a_project_too() -> None:
    from report.html.made import fleet

    environment = fleet(1).environment
    (node, seen), *_ = environment.items()
    settings = tuple(replace(seen.settings[0], name=name, value=value) for name, value in PROJECT.items())
    report = replace(SICK, environment={node: replace(seen, settings=settings)}, notes=tuple(PROJECT.values()))
    text = as_json.render(Redactor(KEY).report(report))
    for secret in ("acmefast", "zebra", "giraffe", "pbsqueen"):
        assert secret not in text


@each_row(("known", "written"), [("ΑΣ-1", "ας-1"), ("gpu-001", "GPU-001")])
def test_a_name_is_known_in_capitals_and_in_small_letters(known: str, written: str) -> None:
    redactor = Redactor(KEY)
    redactor._learn(known, redactor._new.host)
    assert written not in redactor.text(f"x {written} y")


def test_words_that_begin_as_no_known_name_does_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most words of a log are such, and looking up all runs of nine was most of the work."""
    monkeypatch.setattr(Redactor, "_pseudonym", lambda self, name: pytest.fail(name))
    assert Redactor(KEY).text("a.b-c_d " * 9) == "a.b-c_d " * 9
