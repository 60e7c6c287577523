"""Secrets, addresses and names in all spellings: what must go from a line of text, and what everyone has and stays."""

from pathlib import Path

from report.samples import SICK

from ncclprobe.model.values import replace
from ncclprobe.redact.redactor import Redactor

DATA = Path(__file__).parent / "data" / "redact"
STILL_SHOWN = {"zorgacct", "pkarls", "sperber", "ADLERHORST"}
"""Names in a few lines that have no sign of a name: no form of the others may join them unread."""
STILL_CHANGED = {
    "node affinity does not match",
    "host name resolution failed",
    "this node alone did not use it",
    "self.host=args.host",
}
OF_A_REPORT = {"Setting affinity for GPU 0 to ffff,ffffffff", "Temporary failure in name resolution"}
"""What changes only beside the others: a word that one line gives a host is hidden in all."""


def test_secrets_addresses_and_names_go_in_every_spelling() -> None:
    rows = [line.split(" :: ") for line in (DATA / "forms.txt").read_text().splitlines()]
    texts = [(line.replace("\\n", "\n"), secret) for line, secret in rows]
    left = [(line, secret) for line, secret in texts if secret.lower() in Redactor("key").text(line).lower()]
    assert len(rows) >= 630
    assert len(left) <= 7, left
    assert {secret for _, secret in left} <= STILL_SHOWN, left


def test_what_everyone_has_stays() -> None:
    every = (DATA / "public.txt").read_text().splitlines()
    assert len(every) >= 830
    assert {line for line in every if Redactor("key").text(line) != line} <= STILL_CHANGED
    notes = Redactor("key").report(replace(SICK, notes=tuple(every))).notes
    assert {*every} - {*notes} <= STILL_CHANGED | OF_A_REPORT
