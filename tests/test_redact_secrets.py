"""What ``--redact`` takes out, wherever it stands, and what it leaves: secrets of many issuers, and what is judged."""

import base64
import gzip
import json
import random
import re
import string
from collections import Counter
from pathlib import Path

import pytest
from report.samples import SICK

from ncclprobe.commands import main
from ncclprobe.host.capture import dump
from ncclprobe.model.units import whole_words
from ncclprobe.model.values import replace
from ncclprobe.redact.redactor import Redactor
from ncclprobe.report import delivery
from tests.each_row import each_row, some

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
        "Anthropic": ("sk-ant-api03-{}", some(80, SAFE)),
        "AWS, id": ("AKIA{}", some(16, CAPITALS)),
        "AWS, key": ("aws_secret_access_key = {}", some(40)),
        "AWS, session": ("ASIA{}", some(16, CAPITALS)),
        "Azure, account": ("AccountKey={};EndpointSuffix=core.windows.net", encoded(64)),
        "Azure, signature": ("https://a.blob.core.windows.net/c?sv=2022-11-02&sp=r&sig={}%3D", some(43)),
        "age": ("AGE-SECRET-KEY-1{}", some(58).upper()),
        "basic authentication": ("Authorization: Basic {}", encoded(18)),
        "bearer": ("authorization: Bearer {}", some(24)),
        "Comet": ("COMET_API_KEY={}", some(25)),
        "cookie": ("Cookie: session={}", some(32)),
        "Databricks": ("dapi{}", some(32, HEX)),
        "DigitalOcean": ("dop_v1_{}", some(64, HEX)),
        "database": ("MY_DB_PASS={}", some(9)),
        "Docker, login": ("docker login -u zblatt -p {} registry", some(9)),
        "Docker": ("dckr_pat_{}", some(27, SAFE)),
        "GUID of NCCL": ("localGid fe80::1 remoteGidsfe80::{} hca mlx5_0", colons(some(16, "123456789"))),
        "GUID of NCCL, printed": ("NET/IB: IbDev 0 GID 3 (80FE/{}) fifoRkey=0x1", some(14, CAPITALS[26:])),
        "GitHub": ("ghp_{}", some(36)),
        "GitHub, fine": ("github_pat_{}", some(82)),
        "GitLab": ("glpat-{}", some(20, SAFE)),
        "Google": ("AIza{}", some(35, SAFE)),
        "Google, OAuth": ("ya29.{}", some(60, SAFE)),
        "Grafana": ("glsa_{}", some(32)),
        "Hugging Face": ("hf_{}", some(34)),
        "JSON": ('{{"user": 1, "api_key": "{}"}}', some(32)),
        "JSON Web Token": ("eyJhbGciOiJIUzI1NiJ9.{}", some(43, SAFE)),
        "host": ("bootstrap on {} failed", f"quux-node-0{some(3, '123456789')}"),
        "host, Open MPI": ("\n[{}:41234] ORTE has lost a process", f"qx-{some(4, '123456789')}-{some(4, 'abcdef')}"),
        "host, whole": ("connect to {} port 29500 failed", f"quux-{some(3, '123456789')}.dc1.zorkcorp.com"),
        "key in lines": (
            "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIAAAAAAAAAAAAAAA\n{}\n-----END EC PRIVATE KEY-----",
            some(12),
        ),
        "Linear": ("lin_api_{}", some(40)),
        "mail": ("{}@corp.example.com", "alice.smith"),
        "mail, domain": ("#SBATCH --mail-user=alice@{}", f"zorkcorp-{some(4)}.com"),
        "MLflow": ("MLFLOW_TRACKING_PASSWORD={}", some(14)),
        "Neptune": ("NEPTUNE_API_TOKEN={}", encoded(80)),
        "netrc": ("machine git.example login zblatt password {}", some(9)),
        "npm": ("npm_{}", some(36)),
        "NVIDIA": ("nvapi-{}", some(64, SAFE)),
        "OpenAI": ("sk-{}", some(48)),
        "Pulumi": ("pul-{}", some(40, HEX)),
        "OpenAI, project": ("sk-proj-{}", some(60, SAFE)),
        "option": ("--password {}", some(10)),
        "option, token": ("--hub-token={}", some(22)),
        "private key": ("-----BEGIN RSA PRIVATE KEY----- {}", encoded(48)),
        "pod": ("pod {} was evicted", f"zork-{some(6, 'abcdefgh')}-worker-0"),
        "Postgres": ("PGPASSWORD={} psql", some(10)),
        "project": ("#SBATCH -N 8 -A {}", f"zork_{some(6)}"),
        "PyPI": ("pypi-AgEIcHlwaS5vcmc{}", some(60, SAFE)),
        "phrase": ("passphrase: correct {}", f"horse battery {some(8)}"),
        "Redis": ("redis://:{}@10.0.0.3:6379/0", some(10)),
        "Replicate": ("r8_{}", some(37)),
        "SendGrid": ("SG.{}", some(66, SAFE)),
        "Slack": ("xoxb-123456789012-{}", some(24)),
        "Slack, hook": ("https://hooks.slack.com/services/T01234567/B01234567/{}", some(24)),
        "Stripe": ("sk_live_{}", some(24)),
        "URL": ("https://alice:{}@git.corp.example/x.git", some(12)),
        "URL, token": ("https://{}@github.com/corp/x.git", some(20)),
        "Vault": ("hvs.{}", some(24, SAFE)),
        "Weights & Biases": ("wandb: WANDB_API_KEY={}", some(40, HEX)),
        "Weights & Biases, login": ("$ wandb login --relogin {}", some(40, HEX)),
    }


ISSUERS = sorted(secrets_of(0))
WORD = re.compile(r"[A-Za-z]{3,}")
SEEDS = range(5)


def survives(secret: str, text: str) -> bool:
    """Whether `text` holds the secret, or a piece of it that is as long as a word."""
    size = min(len(secret), 9)
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))


@each_row("around", ["{}", "failed with {} at start", "x={}", '"{}"', "[{}]", "({}),", "a\n{}\nb"])
@each_row("issuer", ISSUERS)
def test_no_secret_survives_in_a_text(issuer: str, around: str) -> None:
    for seed in some(SEEDS):
        form, secret = secrets_of(seed)[issuer]
        assert not survives(secret, Redactor("key").text(around.format(form.format(secret))))


@each_row(
    ("text", "shown"),
    [
        ('{"password": "correct horse battery", "rank": 1}', '{"password": "…", "rank": 1}'),
        ("token: 'a;b c' rank 1", "token: '…' rank 1"),
        ("password=ab,rank 1", "password=…,rank 1"),
        (f"x {'aB3' * 4000} y", "x … y"),
        (f"eyJ{'aaaa' * 2000} y", "eyJ… y"),
    ],
)
def test_a_secret_is_taken_out_to_its_end(text: str, shown: str) -> None:
    assert Redactor("key").text(text) == shown


def test_a_host_that_free_text_tells_is_one_wherever_it_stands() -> None:
    notes = ("[gpu-node-0042:1234] lost", "connect to gpu-node-0042.dc1.corp.com", "mail a@corp.com", "at CORP.com")
    redacted = Redactor("key").report(replace(SICK, notes=notes)).notes
    host = redacted[0].partition("[")[2].partition(":")[0]
    assert host.startswith("host-")
    assert redacted[1].startswith(f"connect to {host}.host-")
    assert [text for text in redacted if "corp" in text.lower() or "0042" in text] == []
    assert Redactor("key").text(redacted[0]) == redacted[0]


@each_row("release", ["2.23.4", "2.28.9"])
def test_what_nccl_writes_of_its_failures_stays_readable(release: str) -> None:
    """But for addresses and names of hosts: of the words that NCCL wrote 199 of 200 are still there."""
    path = Path(__file__).parent / "data" / "nccl_failures" / f"{release}.jsonl.gz"
    with gzip.open(path, "rt") as file:
        text = "".join(file)[:300_000]
    before, after = (Counter(WORD.findall(each)) for each in (text, Redactor("key").text(text)))
    lost = before - after
    assert sum(lost.values()) <= sum(before.values()) / 200, lost.most_common(8)


@each_row("piece", ["a.", "a-", "srun a ", "#SBATCH -A ", "-----BEGIN PRIVATE KEY-----", "passphrase: ",
                                   "[a-1:1", "node-001-", "pod a-", "a@b.", "host=a-1", "://:"])  # fmt: skip
def test_a_text_that_says_hosts_and_keys_over_and_over_takes_one_pass(piece: str) -> None:
    assert Redactor("key").text(piece * ((1 << 16) // len(piece)))


def test_names_of_jobs_and_accounts_are_replaced() -> None:
    text = "srun --job-name=tulip --account rose SLURM_JOB_NAME=tulip SBATCH_ACCOUNT=rose: rose of tulip"
    environment = json.dumps({"SLURM_JOB_NAME": "tulip", "SLURM_JOB_ACCOUNT": "rose", "SLURM_NTASKS": "8"})
    redacted = Redactor("key").capture(dump({("env",): environment, ("read", "/x"): text}, "n0"))
    assert not {word for word in ("tulip", "rose") if word in redacted}
    assert "SLURM_NTASKS" in redacted
    assert "tulip" not in Redactor("key").text(text.partition(":")[0])


def words(length: int) -> str:
    return ("word " * (length // 5 + 1))[:length]


@each_row("option", delivery.FORMATS)
def test_no_secret_of_a_log_survives_in_any_format(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At each place in a line: also where texts are cut to what is shown of them, and to what is read of a line."""
    log = tmp_path / "rank0.log"
    known = secrets_of(1)
    lines = ["node1:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>"]
    for number, (form, secret) in enumerate(known.values()):
        for cut in (40, 120, 200, 320, 4096, 17_000):
            before = words(max(0, cut - len(form) - number % len(secret)))
            lines.append(f"RuntimeError: {before} {form.format(secret)} unhandled system error")
    log.write_text("\n".join(lines))
    assert main(["explain", str(log), "--redact", "-v", f"--{option}", str(tmp_path / "out")]) == 0
    for text in ((tmp_path / "out").read_text(), capsys.readouterr().out):
        assert [issuer for issuer, (_, secret) in known.items() if survives(secret, text)] == []


@each_row("option", delivery.FORMATS)
def test_no_secret_of_a_report_survives_in_any_format(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = secrets_of(2)
    path = tmp_path / "r.json"
    notes = tuple(form.format(secret) for form, secret in known.values())
    delivery.write("json", replace(SICK, notes=notes, command=" ".join(["ncclprobe", *notes])), str(path))
    assert main(["report", str(path), "--redact", "-v", f"--{option}", str(tmp_path / "out")]) == 4
    for text in ((tmp_path / "out").read_text(), capsys.readouterr().out):
        assert [issuer for issuer, (_, secret) in known.items() if survives(secret, text)] == []


def test_no_secret_of_a_machine_survives_in_a_capture() -> None:
    known = secrets_of(3)
    said = {("read", f"/etc/{issuer}"): form.format(secret) for issuer, (form, secret) in known.items()}
    said[("env",)] = json.dumps({issuer: form.format(secret) for issuer, (form, secret) in known.items()})
    text = Redactor("key").capture(dump(said, "n0"))
    assert [issuer for issuer, (_, secret) in known.items() if survives(secret, text)] == []


@each_row(
    ("text", "most", "shown"),
    [
        ("one two", 7, "one two"),
        ("one two", 6, "one …"),
        ("one two", 4, "one …"),
        ('a "bcd"', 5, "a …"),
        ("abcdef", 3, " …"),
    ],
)
def test_a_text_is_cut_between_words(text: str, most: int, shown: str) -> None:
    assert whole_words(text, most) == shown
