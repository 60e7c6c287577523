"""A rail tried by libfabric's fi_pingpong: the program itself over TCP on lo, and stand-ins that fail as it can."""

import asyncio
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from fake_verbs import channels
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.host.command import RUNNING
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.rails import Seen, Tried
from ncclprobe.model.rails import RailOutcome, RailPort, RailTest
from ncclprobe.model.values import replace
from ncclprobe.probes import ping_pong
from ncclprobe.probes.ping_pong import failure_of, message_us, run_ping_pong
from tests.each_row import each_row

PRINTED = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
1m      200     =200     400m        0.05s   8388.61      125.00       0.01
"""
QUICK = RailTest(round_trips=2, message_bytes=64 << 10, messages=3, directions=("out", "in"), seconds=20.0)
STAND_IN = """\
#!{python} -IS
import os, signal, socket, sys, time
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
role = "server" if "-B" in arguments else "client"
if {before!r} == role: {what}
if role == "server":
    connection, _ = socket.create_server(("", int(arguments["-B"]))).accept()
    open({met!r}, "w").close()
else:
    connection = socket.create_connection((sys.argv[-1], int(arguments["-P"])))
if {after!r} == role or {large!r} == role and arguments["-S"] != "64": {what}
if role == "server":
    connection.send(b"x")
elif connection.recv(1):
    print({printed!r}, end="")
else:
    sys.exit("[error] util/pingpong.c:1: ctrl/read: no data or remote connection closed")
"""
HANGS, DIES = "time.sleep(1000)", "os.kill(os.getpid(), signal.SIGKILL)"
REFUSES = "sys.exit('fi_domain(): util/pingpong.c:1, ret=-12 (Cannot allocate memory)')"
LOSES = "sys.exit('[error] util/pingpong.c:1: cq_readerr: Unresponsive receiver')"


def stand_in(
    folder: Path, what: str = "pass", *, before: str = "", after: str = "", large: str = "", printed: str = PRINTED
) -> str:
    """Write a program that does `what` in one role: before it listens or calls, once both met, or with large messages.

    The server leaves a file, ``met``, once a caller has come and it listens no more.
    """
    program = folder / "fi_pingpong"
    program.write_text(
        STAND_IN.format(
            python=sys.executable,
            what=what,
            before=before,
            after=after,
            large=large,
            printed=printed,
            met=str(folder / "met"),
        )
    )
    program.chmod(0o755)
    return str(program)


def both_ends(program: str, test: RailTest = QUICK, provider: str = "efa", device: str = "lo") -> list[RailOutcome]:
    """Return what both ends saw, the leading one's first."""
    port = RailPort(device=device, transport="efa", program=program)

    async def ends() -> list[RailOutcome]:
        return await asyncio.gather(*(
            run_ping_pong(
                port, test, leads=leads, channel=channel, deadline=time.monotonic() + 60, provider=provider
            )
            for leads, channel in zip((True, False), channels(), strict=True)
        ))  # fmt: skip

    return asyncio.run(ends())


def told(outcome: RailOutcome) -> list[tuple[str, str]]:
    """Return step and kind of what failed."""
    return [(each.step, each.kind) for each in outcome.failures]


def test_the_program_itself_tells_latency_and_rate_of_both_directions() -> None:
    program = shutil.which("fi_pingpong") or pytest.skip("fi_pingpong is not installed (scripts/lab_packages)")
    lead, other = both_ends(program, provider="tcp")
    assert lead.failures == other.failures == ()
    assert [each.direction for each in (*lead.streams, *other.streams)] == ["out", "in"]
    assert lead.half_round_trip_us[0] > 0
    assert other.half_round_trip_us == ()
    assert lead.streams[0].GBps == pytest.approx(other.streams[0].GBps)
    assert lead.streams[0].nbytes == 3 * (64 << 10)


def test_a_device_that_is_not_there_is_told_by_the_program_itself() -> None:
    program = shutil.which("fi_pingpong") or pytest.skip("fi_pingpong is not installed (scripts/lab_packages)")
    lead, other = both_ends(program, device="rdmap79s0")
    failures = {(each.step, each.kind, each.call, each.errno) for end in (lead, other) for each in end.failures}
    assert ("open", "refused", "fi_getinfo", 61) in failures
    assert all(kind in ("refused", "peer") for _, kind, *_ in failures)


def test_what_is_printed_is_what_is_noted(tmp_path: Path) -> None:
    lead, other = both_ends(stand_in(tmp_path))
    assert lead.failures == other.failures == ()
    assert lead.half_round_trip_us == (125.0,)
    assert other.streams[0].GBps == pytest.approx((64 << 10) / 125e-6 / 1e9)


def test_of_efa_the_domain_of_reliable_endpoints_is_asked_for(tmp_path: Path) -> None:
    lead, _ = both_ends(stand_in(tmp_path, "sys.exit(' '.join(sys.argv[1:]))", after="client"), device="rdmap79s0")
    assert "-p efa -e rdm -d rdmap79s0-rdm -S 64 -I 2 -P " in lead.failures[0].text


@each_row("role", ["client", "server"])
def test_a_path_on_which_nothing_comes_is_told_by_the_end_that_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    class Met(ping_pong._Program):
        async def output(self, seconds: float) -> tuple[str, int | None]:
            until = time.monotonic() + 30
            while not (tmp_path / "met").exists() and time.monotonic() < until:
                await asyncio.sleep(0.01)
            return await super().output(seconds)

    monkeypatch.setattr(ping_pong, "_Program", Met)
    lead, other = both_ends(stand_in(tmp_path, HANGS, after=role), replace(QUICK, seconds=0.3))
    assert (told(lead), told(other)) == ([("connect", "late")], [("connect", "peer")])
    assert lead.failures[0].text == "fi_pingpong did not end within 0.3 s, and was killed"


def test_ends_whose_connection_over_tcp_never_came_about_never_met(tmp_path: Path) -> None:
    lead, other = both_ends(stand_in(tmp_path, HANGS, before="client"), replace(QUICK, seconds=0.3))
    assert (told(lead), told(other)) == ([("connect", "late")], [("open", "channel")])
    assert "firewall" in other.failures[0].text
    assert not Tried(1, Seen(End("n0"), lead), Seen(End("n1"), other), 1, 0).met


def test_what_hangs_is_killed_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int | None] = []

    class Noted(ping_pong._Program):
        def __exit__(self, *ended: object) -> None:
            assert self._process
            super().__exit__(*ended)
            left.append(self._process.poll())

    monkeypatch.setattr(ping_pong, "_Program", Noted)
    both_ends(stand_in(tmp_path, HANGS, after="client"), replace(QUICK, seconds=0.3))
    assert left[0] == -signal.SIGKILL
    assert None not in left
    assert not RUNNING


def test_large_messages_that_are_lost_are_told_of_both_directions(tmp_path: Path) -> None:
    lead, other = both_ends(stand_in(tmp_path, LOSES, large="client"))
    assert [(each.step, each.kind, each.direction) for each in lead.failures] == [
        ("write", "completion", "out"),
        ("write", "completion", "in"),
    ]
    assert "Unresponsive receiver" in lead.failures[0].text
    assert lead.half_round_trip_us
    assert {kind for _, kind in told(other)} == {"peer"}


@each_row("role", ["client", "server"])
def test_large_messages_that_one_end_loses_are_dead_ways_in_both_directions(tmp_path: Path, role: str) -> None:
    one, other = (Seen(End(f"n{n}"), each) for n, each in enumerate(both_ends(stand_in(tmp_path, LOSES, large=role))))
    tried = Tried(1, one, other, 1, 0)
    assert tried.usable
    assert tried.dead() == [(one.end, other.end), (other.end, one.end)]
    assert not tried.late()


@each_row(
    ("what", "role", "lead", "other"),
    [
        (DIES, "client", ("connect", "died"), ("connect", "peer")),
        (DIES, "server", ("connect", "peer"), ("connect", "died")),
        (REFUSES, "client", ("open", "refused"), ("open", "peer")),
        (REFUSES, "server", ("connect", "peer"), ("open", "refused")),
        (LOSES, "client", ("connect", "completion"), ("connect", "peer")),
        (LOSES, "server", ("connect", "peer"), ("connect", "completion")),
        ("sys.exit(0)", "server", ("connect", "peer"), ("open", "channel")),
    ],
)
def test_an_end_whose_program_ends_by_itself_says_so(
    tmp_path: Path, what: str, role: str, lead: tuple[str, str], other: tuple[str, str]
) -> None:
    seen = both_ends(stand_in(tmp_path, what, after=role))
    assert [told(each) for each in seen] == [[lead], [other]]


@each_row(("what", "other"), [(HANGS, ("open", "hangs")), (DIES, ("open", "died")), (REFUSES, ("open", "refused"))])
def test_a_server_that_never_listens_is_told_by_its_own_end(tmp_path: Path, what: str, other: tuple[str, str]) -> None:
    test = replace(QUICK, setup_seconds=0.3 if what == HANGS else 20.0)
    seen = both_ends(stand_in(tmp_path, what, before="server"), test)
    assert [told(each) for each in seen] == [[("open", "peer")], [other]]


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    lead, other = both_ends(str(tmp_path / "fi_pingpong"))
    assert (told(lead), told(other)) == ([("open", "peer")], [("open", "missing")])
    assert "No such file" in other.failures[0].text


def test_a_program_that_prints_no_row_is_no_measurement(tmp_path: Path) -> None:
    lead, _ = both_ends(stand_in(tmp_path, printed="all is well"))
    assert told(lead) == [("open", "refused")]
    assert "all is well" in lead.failures[0].text


@each_row("message", [{}, {"port": 1 << 16}, {"port": "22"}, {"us": -1.0}, {"failure": 7}])
def test_another_end_that_talks_nonsense_is_no_partner(tmp_path: Path, message: dict[str, object]) -> None:
    async def meet() -> RailOutcome:
        here, there = channels()
        await there.send(message, 0.0)
        port = RailPort(device="lo", transport="efa", program=stand_in(tmp_path))
        return await run_ping_pong(port, QUICK, leads=True, channel=here, deadline=time.monotonic() + 60)

    (failure,) = asyncio.run(meet()).failures
    assert failure.kind == "channel"


def test_a_port_is_reserved_until_a_process_listens_on_it() -> None:
    with ping_pong._reserved(socket.AF_INET) as (port, taken), socket.socket() as server:
        assert not taken()
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("", port))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", port))
        assert not taken()
        server.listen()
        assert taken()


def test_the_row_of_one_size_is_read() -> None:
    assert message_us(PRINTED) == 125.0
    assert message_us("a warning\n" + PRINTED) == 125.0


@each_row(
    "text",
    [
        "",
        PRINTED.splitlines()[0],
        PRINTED.replace("=200", "+3"),
        PRINTED.replace("125.00", "nan"),
        PRINTED.replace("125.00", "inf"),
        PRINTED.replace("125.00", "0.00"),
        PRINTED.replace("125.00", "fast"),
        PRINTED.replace(" 0.05s", ""),
    ],
)
def test_what_is_no_row_is_none(text: str) -> None:
    assert message_us(text) is None


@given(st.text(max_size=300), st.integers(-300, 300), st.text(max_size=60))
def test_whatever_is_printed_is_a_time_or_a_failure_in_words(text: str, code: int, line: str) -> None:
    value = message_us(PRINTED.replace("125.00", line))
    assert value is None or value > 0
    assert message_us(text) is None or "bytes" in text
    failure = failure_of(f"{line}\n{text}", code, "connect")
    assert failure.text.startswith("fi_pingpong")
    assert len(failure.text) < 400


@each_row(
    ("text", "step", "kind", "call"),
    [
        ("fi_getinfo(): util/pingpong.c:1, ret=-61 (No data available)", "open", "refused", "fi_getinfo"),
        ("setsockopt(SO_REUSEADDR)(): util/pingpong.c:1, ret=-1 (x)", "connect", "completion", ""),
        ("[error] util/pingpong.c:1: failed to connect: No route to host", "open", "channel", ""),
        ("[error] util/pingpong.c:1: cq_readerr: Unresponsive receiver", "connect", "completion", ""),
        ("ctrl/read(): util/pingpong.c:1, ret=-104 (Connection reset by peer)", "connect", "peer", "ctrl/read"),
        ("[error] util/pingpong.c:1: ctrl/read: no data or remote connection closed", "connect", "peer", ""),
    ],
)
def test_whose_failure_it_is_follows_from_the_call(text: str, step: str, kind: str, call: str) -> None:
    failure = failure_of(text, 1, "connect")
    assert (failure.step, failure.kind) == (step, kind)
    assert not call or failure.call == call
