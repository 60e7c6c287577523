"""Processes of one run share a secret; those of another do not."""

import os

import pytest

from ncclprobe.cluster.rendezvous.token import run_token


def test_a_given_token_is_taken_and_never_printed() -> None:
    token = run_token({"NCCLPROBE_TOKEN": "correct horse"}, "job 7", 29500)
    assert token == run_token({"NCCLPROBE_TOKEN": "correct horse"}, "", 1)
    assert token.secret != run_token({"NCCLPROBE_TOKEN": "correct cow"}, "job 7", 29500).secret
    assert repr(token) == "Token(NCCLPROBE_TOKEN)"


def test_without_one_the_jobs_own_marks_keep_runs_apart_and_it_says_that_this_is_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = run_token({"NCCLPROBE_TOKEN": ""}, "job 7", 29500)
    assert token == run_token({}, "job 7", 29500)
    others = [run_token({}, "job 8", 29500), run_token({}, "job 7", 29501), run_token({}, "", 29500)]
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    others.append(run_token({}, "job 7", 29500))
    assert len({token.secret, *(other.secret for other in others)}) == 5
    assert "against mix-ups only" in token.origin
