"""What came of the stages, as JSON and as Markdown: of each stage in its folder, and of all of them together."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_stages.steps import Step

NAME = "summary"
_MOST_WORDS = 400
_ORDER = ("good", "bad", "failed", "refused", "late")


def of_stage(number: int, title: str, steps: Sequence[Step], **more: Any) -> dict[str, Any]:
    """One stage as an object: its steps without what they found in full, and `more` about it."""
    rows = [{"name": s.name, "status": s.status, "seconds": s.seconds, "why": s.why, "found": s.found} for s in steps]
    counts = Counter(step.status for step in steps)
    return {"stage": number, "title": title, **more, "counts": dict(counts), "steps": rows}


def write(folder: Path, content: Mapping[str, Any], text: str) -> tuple[Path, Path]:
    """Write both forms into `folder`."""
    paths = folder / f"{NAME}.json", folder / f"{NAME}.md"
    paths[0].write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(text, encoding="utf-8")
    return paths


def stage_text(stage: Mapping[str, Any]) -> str:
    """A stage as Markdown."""
    return "\n".join(_stage_lines(stage, "#")) + "\n"


def whole_text(stages: Sequence[Mapping[str, Any]], where: str, about: Mapping[str, Any]) -> str:
    """All stages as Markdown."""
    lines = [f"# The first hour on a GPU, {where}", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    lines += ["", "| stage | seconds | " + " | ".join(_ORDER) + " |", "|---|---|" + "---|" * len(_ORDER)]
    for stage in stages:
        counts = [str(stage["counts"].get(status, 0)) for status in _ORDER]
        lines.append(f"| {stage['stage']}. {stage['title']} | {stage['seconds']:.0f} | " + " | ".join(counts) + " |")
    for stage in stages:
        lines += ["", *_stage_lines(stage, "##")]
    return "\n".join(lines) + "\n"


def _stage_lines(stage: Mapping[str, Any], mark: str) -> list[str]:
    head = f"{mark} {stage['stage']}. {stage['title']} ({stage['seconds']:.0f} of {stage['deadline_s']:.0f} s)"
    lines = [head, ""]
    for key, title in (("replaced", "Replaced in this rehearsal"), ("not_run", "Not run here")):
        if stage.get(key):
            lines += [f"{title}:", "", *(f"- {each}" for each in stage[key]), ""]
    if stage.get("ended"):
        lines += [f"**{stage['ended']}**", ""]
    lines += ["| step | status | s | what |", "|---|---|---|---|"]
    lines += [f"| {s['name']} | {s['status']} | {s['seconds']:.1f} | {_what(s)} |" for s in stage["steps"]]
    return lines


def _what(step: Mapping[str, Any]) -> str:
    """The problems of a step; of a good one what it found."""
    found = {key: value for key, value in step["found"].items() if isinstance(value, str | int | float | bool)}
    text = "; ".join(step["why"]) or ", ".join(f"{key} {_short(value)}" for key, value in found.items())
    return " ".join(text.replace("|", "\\|").split())[:_MOST_WORDS]


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
