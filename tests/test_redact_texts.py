"""What ``--redact`` takes out of texts, and what it leaves: secrets, people, what a site calls its own."""

import base64
import gzip
import json
import random
import re
import string
from collections import Counter
from pathlib import Path

import pytest
from fake_site import KEY, capture
from report.samples import SICK

from ncclprobe.commands import main
from ncclprobe.engine.diagnose import every_check
from ncclprobe.host.capture import dump
from ncclprobe.host.settings import sanitised
from ncclprobe.model.values import replace
from ncclprobe.redact.redactor import Redactor
from ncclprobe.report import delivery
from tests.each_row import each_row, some

DATA = Path(__file__).parent / "data"
STILL_SHOWN = {"zorgacct", "pkarls", "sperber", "ADLERHORST"}
"""Names in a few lines that have no sign of a name: no form of the others may join them unread."""
STILL_CHANGED = {
    "node affinity does not match", "host name resolution failed", "this node alone did not use it",
    "self.host=args.host",
}  # fmt: skip
OF_A_REPORT = {"Setting affinity for GPU 0 to ffff,ffffffff", "Temporary failure in name resolution"}
"""What changes only beside the others: a word that one line gives a host is hidden in all."""


def redacted(text: str) -> str:
    return Redactor(KEY).text(text)


def test_secrets_addresses_and_names_go_in_every_spelling() -> None:
    rows = [line.split(" :: ") for line in (DATA / "redact" / "forms.txt").read_text().splitlines()]
    texts = [(line.replace("\\n", "\n"), secret) for line, secret in rows]
    left = [(line, secret) for line, secret in texts if secret.lower() in Redactor("key").text(line).lower()]
    assert len(rows) >= 630
    assert len(left) <= 7, left
    assert {secret for _, secret in left} <= STILL_SHOWN, left


def test_what_everyone_has_stays() -> None:
    every = (DATA / "redact" / "public.txt").read_text().splitlines()
    assert len(every) >= 830
    assert {line for line in every if Redactor("key").text(line) != line} <= STILL_CHANGED
    notes = Redactor("key").report(replace(SICK, notes=tuple(every))).notes
    assert {*every} - {*notes} <= STILL_CHANGED | OF_A_REPORT


LETTERS, HEX = string.ascii_letters + string.digits, "0123456789abcdef"
CAPITALS, SAFE = string.ascii_uppercase + string.digits, string.ascii_letters + string.digits + "-_"


def secrets_of(seed: int) -> dict[str, tuple[str, str]]:
    """By issuer: how the secret is written, with {} in its place, and the secret."""
    dice = random.Random(seed)

    def some(length: int, of: str = LETTERS) -> str:
        return "".join(dice.choice(of) for _ in range(length))

    def encoded(nbytes: int) -> str:
        return base64.b64encode(dice.randbytes(nbytes)).decode().rstrip("=")

    def colons(digits: str) -> str:
        return ":".join(digits[at : at + 4] for at in range(0, len(digits), 4))

    return {
        "AWS, id": ("AKIA{}", some(16, CAPITALS)), "AWS, key": ("aws_secret_access_key = {}", some(40)),
        "AWS, session": ("ASIA{}", some(16, CAPITALS)),
        "Azure, account": ("AccountKey={};EndpointSuffix=core.windows.net", encoded(64)),
        "Azure, signature": ("https://a.blob.core.windows.net/c?sv=2022-11-02&sp=r&sig={}%3D", some(43)),
        "age": ("AGE-SECRET-KEY-1{}", some(58).upper()), "Comet": ("COMET_API_KEY={}", some(25)),
        "Databricks": ("dapi{}", some(32, HEX)), "DigitalOcean": ("dop_v1_{}", some(64, HEX)),
        "database": ("MY_DB_PASS={}", some(9)), "Docker, login": ("docker login -u zblatt -p {} registry", some(9)),
        "Docker": ("dckr_pat_{}", some(27, SAFE)),
        "GUID of NCCL": ("localGid fe80::1 remoteGidsfe80::{} hca mlx5_0", colons(some(16, "123456789"))),
        "GUID of NCCL, printed": ("NET/IB: IbDev 0 GID 3 (80FE/{}) fifoRkey=0x1", some(14, CAPITALS[26:])),
        "GitHub, fine": ("github_pat_{}", some(82)), "Google": ("AIza{}", some(35, SAFE)),
        "Google, OAuth": ("ya29.{}", some(60, SAFE)), "Grafana": ("glsa_{}", some(32)),
        "JSON": ('{{"user": 1, "api_key": "{}"}}', some(32)),
        "host": ("bootstrap on {} failed", f"quux-node-0{some(3, '123456789')}"),
        "host, Open MPI": ("\n[{}:41234] ORTE has lost a process", f"qx-{some(4, '123456789')}-{some(4, 'abcdef')}"),
        "host, whole": ("connect to {} port 29500 failed", f"quux-{some(3, '123456789')}.dc1.zorkcorp.com"),
        "key in lines": ("-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIAAAAAAAAAAAAAAA\n{}\n-----END EC PRIVATE KEY-----",
                         some(12)),
        "Linear": ("lin_api_{}", some(40)), "mail": ("{}@corp.example.com", "alice.smith"),
        "mail, domain": ("#SBATCH --mail-user=alice@{}", f"zorkcorp-{some(4)}.com"),
        "Neptune": ("NEPTUNE_API_TOKEN={}", encoded(80)),
        "netrc": ("machine git.example login zblatt password {}", some(9)), "npm": ("npm_{}", some(36)),
        "NVIDIA": ("nvapi-{}", some(64, SAFE)), "OpenAI": ("sk-{}", some(48)), "Pulumi": ("pul-{}", some(40, HEX)),
        "option, token": ("--hub-token={}", some(22)),
        "private key": ("-----BEGIN RSA PRIVATE KEY----- {}", encoded(48)),
        "pod": ("pod {} was evicted", f"zork-{some(6, 'abcdefgh')}-worker-0"),
        "Postgres": ("PGPASSWORD={} psql", some(10)), "project": ("#SBATCH -N 8 -A {}", f"zork_{some(6)}"),
        "PyPI": ("pypi-AgEIcHlwaS5vcmc{}", some(60, SAFE)),
        "phrase": ("passphrase: correct {}", f"horse battery {some(8)}"), "Replicate": ("r8_{}", some(37)),
        "SendGrid": ("SG.{}", some(66, SAFE)), "Slack": ("xoxb-123456789012-{}", some(24)),
        "Slack, hook": ("https://hooks.slack.com/services/T01234567/B01234567/{}", some(24)),
        "Stripe": ("sk_live_{}", some(24)), "URL": ("https://alice:{}@git.corp.example/x.git", some(12)),
        "URL, token": ("https://{}@github.com/corp/x.git", some(20)),
        "Weights & Biases": ("wandb: WANDB_API_KEY={}", some(40, HEX)),
        "Weights & Biases, login": ("$ wandb login --relogin {}", some(40, HEX)),
    }  # fmt: skip


WORD = re.compile(r"[A-Za-z]{3,}")


def survivors(known: dict[str, tuple[str, str]], text: str) -> list[str]:
    """The issuers of whose secrets `text` holds all, or a piece that is as long as a word."""
    of = {issuer: secret for issuer, (_, secret) in known.items()}
    pieces = {issuer: [each[at : at + 9] for at in range(max(len(each) - 8, 1))] for issuer, each in of.items()}
    return [issuer for issuer, each in pieces.items() if any(piece in text for piece in each)]


@each_row("around", ["{}", "failed with {} at start", "x={}", '"{}"', "[{}]", "({}),", "a\n{}\nb"])
def test_no_secret_survives_in_a_text(around: str) -> None:
    for known in map(secrets_of, range(5)):
        for issuer, (form, secret) in known.items():
            assert not survivors({issuer: (form, secret)}, redacted(around.format(form.format(secret)))), issuer


def padded(length: int) -> str:
    return ("word " * (length // 5 + 1))[: max(length, 0)]


@each_row("option", delivery.FORMATS)
def test_no_secret_of_a_log_or_a_report_survives_in_any_format(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At each place in a line: also where texts are cut to what is shown of them, and to what is read of a line."""
    known, lines = secrets_of(1), ["node1:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>"]
    for number, (form, secret) in enumerate(known.values()):
        cuts = [padded(cut - len(form) - number % len(secret)) for cut in (40, 120, 200, 320, 4096, 17_000)]
        lines += [f"RuntimeError: {before} {form.format(secret)} unhandled system error" for before in cuts]
    (tmp_path / "rank0.log").write_text("\n".join(lines))
    notes = tuple(form.format(secret) for form, secret in known.values())
    made = replace(SICK, notes=notes, command=" ".join(["ncclprobe", *notes]))
    delivery.write("json", made, str(tmp_path / "r.json"))
    for command, read, code in (("explain", "rank0.log", 0), ("report", "r.json", 4)):
        written = tmp_path / f"{command}.out"
        assert main([command, str(tmp_path / read), "--redact", "-v", f"--{option}", str(written)]) == code
        for text in (written.read_text(), capsys.readouterr().out):
            assert survivors(known, text) == []


def test_no_secret_of_a_machine_survives_in_a_capture() -> None:
    known = secrets_of(3)
    said = {("read", f"/etc/{issuer}"): form.format(secret) for issuer, (form, secret) in known.items()}
    said[("env",)] = json.dumps({issuer: form.format(secret) for issuer, (form, secret) in known.items()})
    assert survivors(known, Redactor("key").capture(dump(said, "n0"))) == []


@each_row(
    ("text", "shown"),
    [
        ('{"password": "correct horse battery", "rank": 1}', '{"password": "…", "rank": 1}'),
        ("token: 'a;b c' rank 1", "token: '…' rank 1"), ("password=ab,rank 1", "password=…,rank 1"),
        (f"x {'aB3' * 4000} y", "x … y"), (f"eyJ{'aaaa' * 2000} y", "eyJ… y"), ("a.b-c_d " * 9, "a.b-c_d " * 9),
    ],
)  # fmt: skip
def test_a_secret_is_taken_out_to_its_end_and_nothing_else(text: str, shown: str) -> None:
    assert redacted(text) == shown


@each_row(
    ("value", "kept"),
    [
        ("password:hunter2", "password:…"), ("mlx5_0 password: hunter2,mlx5_1", "mlx5_0 password: …,mlx5_1"),
        ("/x?y PASSWD=hunter2", "/x?y PASSWD=…"), ("api_key=hunter2&a=b", "api_key=…&a=b"),
        ("token=hunter2 secret = hunter2", "token=… secret = …"), ("http://u:hunter2@h/x", "http://h/x"),
        ("mlx5_0:1,mlx5_1:1", "mlx5_0:1,mlx5_1:1"), ("keyboard:1 passwords", "keyboard:1 passwords"),
    ],
)  # fmt: skip
def test_what_follows_a_password_is_neither_recorded_nor_left_by_redaction(value: str, kept: str) -> None:
    assert sanitised(value) == kept
    assert "hunter2" not in redacted(value.replace("u:hunter2@", ""))


@each_row("release", ["2.23.4", "2.28.9"])
def test_what_nccl_writes_of_its_failures_stays_readable(release: str) -> None:
    """But for addresses and names of hosts: of the words that NCCL wrote 199 of 200 are still there."""
    with gzip.open(DATA / "nccl_failures" / f"{release}.jsonl.gz", "rt") as file:
        text = "".join(file)[:300_000]
    before, after = (Counter(WORD.findall(each)) for each in (text, Redactor("key").text(text)))
    lost = before - after
    assert sum(lost.values()) <= sum(before.values()) / 200, lost.most_common(8)


PIECES = (
    "a|:|a:|a-|a.|1.|a[1,|/|serial |/home/|GPU-|0|[|é.|srun a |#SBATCH -A |-----BEGIN PRIVATE KEY-----|passphrase: |"
    "[a-1:1|node-001-|pod a-|a@b.|host=a-1|://:|user a|ssh a |a@b|uid=1(|account-|curl x |SN A|serial A1-"
)


@each_row("piece", PIECES.split("|"))
@pytest.mark.slow
@pytest.mark.every_time
def test_a_text_that_says_one_thing_over_and_over_takes_one_pass(piece: str) -> None:
    """Were it quadratic, 64 KiB would take minutes, and the test's own limit would end it."""
    redactor = Redactor(KEY)
    redactor.capture(capture())
    assert redactor.text(piece * ((1 << 16) // len(piece)))


def test_no_word_of_a_checks_own_explanation_is_taken_for_a_sites() -> None:
    redactor = Redactor(KEY)
    addresses = re.compile(r"\d{1,3}(\.\d{1,3}){3}|NCCLPROBE_TOKEN=\S+")
    for check in some(every_check()):
        told = addresses.sub("", check.run.__doc__ or "")
        assert redactor.text(told) == told, check.id
