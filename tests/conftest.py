"""What several tests share: the facts beside the checkout, a host made of a dictionary, a clean environment."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.errors import HostError
from ncclprobe.host import Question, Replay

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Finds a file of the facts and corpus kept beside the project; skips where they are absent."""
    folder = Path(os.environ.get("NCCLPROBE_SHARED") or ROOT.parent / "shared")

    def find(name: str) -> Path:
        if not (folder / name).exists():
            pytest.skip(f"{name} is not beside this checkout (NCCLPROBE_SHARED names another folder)")
        return folder / name

    return find


def answers(said: dict[Question, Any]) -> Replay:
    """A host that knows these answers only; structured ones may be given as objects."""
    texts: dict[Question, str | HostError] = {
        ask: answer if isinstance(answer, str | HostError) else json.dumps(answer) for ask, answer in said.items()
    }
    return Replay(texts)
