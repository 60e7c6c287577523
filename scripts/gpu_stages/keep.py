"""What stays of an hour: the machine's capture and the recorded jobs, redacted under one key that is then forgotten."""

import secrets
from pathlib import Path

CAPTURE = Path("stage3", "capture", "machine.jsonl")
_BINARY = ".pickle"
_MOST_BYTES = 400 << 10
"""Of one file: tests read them all."""


def keep(out: Path, into: Path) -> list[str]:
    """Write OUT's capture and jobs into `into`, redacted; the files that were left out, and why.

    A pickled dump cannot be changed: it stays as torch wrote it where nothing in it needs redaction. Raises OSError
    where there is no capture, from which the names of the machine are learned.
    """
    from ncclprobe.redact.redactor import Redactor

    redactor = Redactor(secrets.token_hex(16))
    into.mkdir(parents=True, exist_ok=True)
    (into / "machine.jsonl").write_text(redactor.capture((out / CAPTURE).read_text(encoding="utf-8")))
    left = []
    for path in sorted((out / "stage2").glob("*/*")):
        if not (path.parent / "end.json").exists() or not path.is_file():
            continue
        target = into / "jobs" / path.relative_to(out / "stage2")
        text = path.read_bytes().decode("latin-1" if _BINARY in path.name else "utf-8", errors="replace")
        redacted = redactor.text(text)
        if path.stat().st_size > _MOST_BYTES:
            left.append(f"{path.parent.name}/{path.name}: {path.stat().st_size} bytes")
        elif _BINARY in path.name and redacted != text:
            left.append(f"{path.parent.name}/{path.name}: names in pickled bytes")
        elif text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(redacted.encode("latin-1" if _BINARY in path.name else "utf-8"))
    return left
