"""One rank between the answers of the others: its steps in their order, as rank 0 and as another one."""

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from ncclprobe.commands import workload as command_line
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.facts.run.samples import Participants
from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import UsageError
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import asdict, replace
from ncclprobe.session.measure import collectives
from ncclprobe.session.measure import rank as of_rank
from ncclprobe.session.measure.context import TORCH_SLACK_S
from ncclprobe.session.measure.rank import Rank
from ncclprobe.session.ranks import group, rank_files
from ncclprobe.session.ranks.identity import RankIdentity, RankInfo, RunConfig
from tests.each_row import each_row
from tests.one_rank import Others, instead

module: Any = of_rank
INFO = RankInfo("n0", 7, {}, "gloo")
NO_GPU = "--backend nccl needs a GPU per rank, and no GPU is visible; use --backend gloo"


class Played:
    """A rank of two on one node that notes each call in `log`; what would take time or other ranks is replaced."""

    def __init__(self, number: int, patch: pytest.MonkeyPatch, *said: Any, parts: Any = ("pairs",), **options: Any):
        asked = replace(command_line.parse(["ddp", "-q"]), what=parts, phase_timeout_s=50.0, timeout_s=90.0, **options)
        identity = RankIdentity("environment", number, 2, number, 2, 1, "n0", 7)
        self.log: list[str] = []
        self.rank: Any = Rank(asked, ask(asked.judging, (), Job(), MEASURED), identity, Replay({}, "n0"), (), "nccl")
        self.exchange, self.patch = Others(*said, rank=number), patch
        self.rank._hostname, self.rank._look, self.rank._deadline = f"h{number}", None, module.time.monotonic() + 10.0
        watchdog = self.all_of("set_phase", "attach", "dismiss", "prepare", left_s=40.0, late=((1, 15.4),))
        recorder = self.all_of("note", "record", "ask_for", "lose_files", close=4, take_captures=["n0"])
        watchdog.late_s, recorder.participants = 5.0, Participants("self", 2, ("h0", "h1"), "gloo")
        progress = self.all_of("finish", "say", "show")
        vars(self.rank).update(_watchdog=watchdog, _progress=progress, _recorder=None if number else recorder)

    def all_of(self, *names: str, **answers: Any) -> Any:
        return SimpleNamespace(
            **{name: self.noting(name, answer) for name, answer in (dict.fromkeys(names) | answers).items()}
        )

    def noting(self, name: str, answer: Any = None) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            plain = [each for each in (*given, *named.values()) if isinstance(each, str | int | float | tuple | list)]
            self.log.append(" ".join(map(str, (name, *plain))))
            return answer

        return call

    def instead(self, of: Any, **answers: Any) -> None:
        for name, answer in answers.items():
            self.patch.setattr(of, name, self.noting(name, answer))


FIRST, CLOSE = "finish torch, process group and first calls", "set_phase close the process group"
COPIES = ("play copies", "finish copies")
LATE = "note rank 1 came 15 s after half of the ranks; the others waited for it"


@each_row(("number", "apart"), [(0, False), (1, True)])
def test_a_rank_meets_the_others_measures_and_leaves_last_if_it_is_rank_0(
    number: int, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Played(number, monkeypatch, *[3] * number)
    own.instead(module, resolve=None, connect="store", share_gpus=None, explain_exit=None)
    own.instead(own.rank, _agree=RunConfig("gloo", 1, apart=apart), _expect="run", _measure_in_group=None, _torch=None)
    own.instead(own.rank, _context="context", _gather_captures=None)
    monkeypatch.setattr(
        module, "Exchange", lambda store, identity, slack_s: own.noting("exchange", own.exchange)(slack_s)
    )
    assert own.rank._measure() == (3 if number else 4)
    slack_s = 55.0 + TORCH_SLACK_S
    assert own.log == [
        "_torch", "set_phase resolve the name of rank 0's host, n0", "resolve", "set_phase reach the store at n0:7",
        f"connect {not number} {slack_s}", f"connect False {slack_s}", "attach store store",
        "set_phase wait for the other ranks", f"exchange {slack_s}", "_agree",
        *(["set_phase learn which GPUs each rank of a node sees", "share_gpus h1 ('h1',)"] * apart), "_context",
        "_expect context", "_measure_in_group run", "set_phase collect the captures of all nodes", "_gather_captures",
        "set_phase verdict",
        *(["explain_exit 3 fail"] if number else ["late", LATE, "close", "explain_exit 4 fail"]),
        f"dismiss {3 if number else 4}",
    ]  # fmt: skip
    assert own.exchange.said == [None, None if number else 4, None]
    assert own.rank._watchdog.met


def _plays(part: str, own: Played) -> Any:
    return SimpleNamespace(play=own.noting(f"play {part.rpartition('.')[2]}", not part.endswith("pairs")))


@each_row(
    ("backend", "parts", "xids", "steps"),
    [
        ("gloo", ("collectives",), (), ["first_calls 1.5", FIRST,
         "play collectives", "finish collectives", CLOSE, "destroy"]),
        ("nccl", ("copies",), (), [FIRST, *COPIES, "tell_xids True", CLOSE, "destroy"]),
        ("nccl", ("copies",), Absent("no"), [FIRST, *COPIES, "tell_xids False", CLOSE, "destroy"]),
        ("gloo", ("pairs", "ladder", "copies"), (), ["first_calls 1.5", FIRST, "left_s", "play pairs", "finish pairs",
         "left_s", "record ladder lost", "left_s", "record copies lost", CLOSE, "_abort"]),
    ],
)  # fmt: skip
def test_each_part_is_measured_in_one_group_that_is_closed_unless_a_pair_was_lost(
    backend: Any, parts: Any, xids: Any, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Played(0, monkeypatch, parts=parts)
    own.rank._recorder.record = lambda row: own.log.append(f"record {row.op} {row.cause}")
    own.instead(own.rank, _open_group=1.5, _abort=None)
    own.instead(module.interference, tell_xids=None)
    own.instead(collectives, first_calls=None)
    monkeypatch.setattr(module.nvml, "xids", lambda host: xids)
    monkeypatch.setattr(module, "import_module", lambda part: _plays(part, own))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", own.noting("destroy"))
    own.rank._measure_in_group(SimpleNamespace(config=RunConfig(backend, 1), exchange=own.exchange))
    assert own.log == [f"_open_group {backend}", *steps]


def test_ranks_agree_by_what_rank_0_decides_and_a_problem_of_one_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    differ = asdict(replace(INFO, plan=8))
    words = "rank 1 on n0 was started with different options from rank 0; give every rank the same options"
    for number, said, error in ((0, [asdict(INFO)], ""), (0, [differ], words), (1, asdict(RunConfig("gloo", 2)), "")):
        own = Played(number, monkeypatch, said)
        own.rank._rank_info = lambda torch: INFO
        own.instead(module.interference, record_participants=("NCCL_ALGO: Ring, Tree",))
        with pytest.raises(UsageError, match=words) if error else mock.MagicMock():
            assert own.rank._agree(own.exchange, torch) == RunConfig("gloo", 2 if number else 1)
        shared = None if number else RunConfig("gloo", 1, "", error)
        assert own.exchange.said == [asdict(INFO), shared and asdict(shared), None]
        told = ["record_participants environment ['h0', 'h1']"[:31], "say ranks differ in NCCL_ALGO: Ring, Tree"]
        assert [line[:31] for line in own.log] == [line[:31] for line in told if not number and not error]


@each_row(("only_judged", "number"), [(False, 0), (True, 0), (True, 1)])
def test_only_the_sizes_that_rank_0_can_judge_are_measured_if_no_others_were_asked_for(
    only_judged: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Played(number, monkeypatch, [8, 16], only_judged=only_judged, sizes=(8, 1 << 20, 4 << 20, 16 << 20))
    monkeypatch.setattr(module, "learn", lambda run: SimpleNamespace(bands=()))
    found = own.rank._expect(replace(own.rank._context(own.exchange, RunConfig("gloo", 1)), set_phase=own.log.append))
    sizes = (8, 16) if number else (8, 4 << 20, 16 << 20)
    assert found.sizes == (sizes if only_judged else ())
    chosen = [f"ask_for {sizes}"] * (only_judged and not number)
    assert own.log == ["learn what to expect", *chosen]
    assert (found.device, found.hosts) == ("cpu", (f"h{number}",) if number else ("h0", "h1"))
    assert own.rank._context(None, RunConfig("nccl", 1)).device == "cuda:0"


def test_a_rank_reports_the_gpu_of_its_seat_or_why_it_can_measure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host has no device, so what torch counts decides; of copies in host memory no note is needed."""
    gpu = replace(INFO, backend="nccl", gpu="0000:07:00.0")
    for parts, usable, backend, found in (
        (("collectives",), 0, None, "rank_info h1 gloo 0 2 no GPU is visible, so this measured gloo"),
        (("copies",), 0, None, "rank_info h1 gloo 0 2 "), (("pairs",), 2, "nccl", "rank_info h1 nccl 1 2 "),
        (("pairs",), 1, "nccl", "rank_info h1 nccl 0 2 "), (("pairs",), 0, "nccl", ""),
    ):  # fmt: skip
        own = Played(1, monkeypatch, parts=parts, backend=backend)
        own.instead(module.interference, rank_info=gpu)
        with instead(module.interference, usable_gpus=usable, versions={}):
            info = own.rank._rank_info(torch)
        assert [line[: len(found)] for line in own.log] == [found] * bool(found)
        assert (info.error, own.rank._gpu) == (("", gpu.gpu) if found else (NO_GPU, None))


@each_row(("backend", "first"), [("gloo", []), ("nccl", ["set_device 3"])])
def test_a_rank_takes_its_gpu_before_the_group(backend: Any, first: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = Played(1, monkeypatch)
    own.rank._device = 3
    own.instead(module.group, barrier=None, open_group=1.5)
    own.instead(torch.cuda, set_device=None)
    assert (own.rank._open_group(backend), own.rank._backend) == (1.5, backend)
    steps = [f"open_group {backend} 80.0", "set_phase meet in the process group", f"barrier {backend} 25.0"]
    assert own.log == ["set_phase init_process_group", *first, *steps]


@each_row(
    ("keep", "given", "folder"),
    [(None, None, ""), ("kept", None, "kept"), ("kept", "ranks", "ranks"), (None, "r", "r")],
)
def test_captures_of_all_nodes_go_to_whoever_started_the_ranks_or_into_the_folder_of_keep(
    keep: str | None, given: str | None, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, own in enumerate([Played(0, monkeypatch), Played(1, monkeypatch)]):
        own.rank._options = replace(own.rank._options, keep=keep)
        with mock.patch.dict(os.environ, {rank_files.FOLDER: given} if given else {}):
            own.instead(module, gather_captures=None if number else [("n0", "text")])
            monkeypatch.setattr(module, "write_captures", lambda to, captures: [f"{to}, {captures}"])
            own.rank._gather_captures(own.exchange)
        lost = [f"lose_files [\"{folder}, [('n0', 'text')]\"]"] * bool(folder)
        kept = [] if number else ["take_captures [('n0', 'text')]", *lost]
        hosts = "('h1',)" if number else "('h0', 'h1')"
        assert own.log == [f"gather_captures h{number} {hosts}", *kept]
        assert own.rank._nodes == ([] if number else ["n0"])


def test_ranks_that_were_started_here_write_their_phases_and_show_none_while_they_import(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = SimpleNamespace(clock=7.0)
    identity: Any = SimpleNamespace(kind="environment")
    assert (module._rank_file(1, "h1"), module._began(started), module._kind(identity)) == (None, 7.0, "environment")
    monkeypatch.setenv(rank_files.FOLDER, str(tmp_path))
    monkeypatch.setenv(rank_files.STARTED, "5.5")
    assert (module._began(started), module._kind(identity)) == (5.5, "self")
    own = Played(1, monkeypatch)
    for phase in (rank_files.IMPORTING, "timing"):
        own.rank._show_phase(phase)
        assert rank_files.read_state(tmp_path, 1, "").phase == phase
    assert own.log == ["show timing"]


@each_row(
    ("argv", "variables", "level"),
    [({}, {}, "FATAL"), ({"verbose": True}, {}, None), ({}, {"TORCH_CPP_LOG_LEVEL": "INFO"}, None)],
)
def test_torchs_own_words_are_hidden_unless_asked_for_and_a_torch_that_is_not_there_is_said(
    argv: dict[str, Any], variables: dict[str, str], level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Played(1, monkeypatch)
    own.rank._options = replace(own.rank._options, output=replace(own.rank._options.output, **argv))
    set_: list[dict[str, str]] = []
    monkeypatch.setattr(module.settings, "set_ours", set_.append)
    monkeypatch.setattr(module, "measuring_environment", lambda given: {"A": "1", "B": "2"})
    with mock.patch.dict(os.environ, {**variables, "A": "1"}):
        assert own.rank._torch() is torch
        assert set_[0] == {"B": "2", **({"TORCH_CPP_LOG_LEVEL": level} if level else {})}
        monkeypatch.setitem(sys.modules, "torch.distributed", None)
        with pytest.raises(UsageError, match="torch"):
            own.rank._torch()
    assert own.log == [f"prepare {rank_files.IMPORTING}"] * 2


def test_nccl_is_aborted_or_asked_in_no_more_than_a_moment_and_gloo_never_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert group.in_flight("gloo") == "", "the recorder of this torch can be read"
    aborted, never = [], threading.Event()

    def abort() -> None:
        aborted.append(1)
        never.wait(20)
        aborted.append(2)

    monkeypatch.setattr(torch.distributed, "group", SimpleNamespace(WORLD=SimpleNamespace(abort=abort)))
    monkeypatch.setattr(group, "ABORT_S", 0.05)
    monkeypatch.setattr(group, "_recorded", lambda backend: str(never.wait(20)))
    group.abort("gloo")
    assert aborted == []
    group.abort("nccl")
    assert aborted == [1]
    assert group.in_flight("nccl") == ""
    never.set()
