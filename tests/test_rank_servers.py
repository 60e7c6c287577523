"""The servers inside ranks: NCCL's RAS and torch's worker server, played by threads of this very process."""

import ctypes
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclprobe.host import rank_servers
from ncclprobe.host.rank_servers import ask_ras, ask_server
from ncclprobe.model.errors import Denied, Failed, HostError, Missing, TimedOut
from tests.each_row import each_row

OWN = (str(os.getpid()),)
STATUS = b'{"nccl_version": "2.28.9"}'
JSON, REFUSED = {b"SET FORMAT json\n": b"OK\n"}, b"ERROR: Unknown command\n"


@contextmanager
def serving(listening: socket.socket, answer: Callable[[socket.socket], None], name: str = "") -> Iterator[None]:
    """Have a thread called `name` take connections, and another one answer each."""
    named = threading.Event()

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            answer(connection)

    def serve() -> None:
        if name:
            ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
        named.set()
        with suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

    with listening:
        playing = threading.Thread(target=serve, daemon=True)
        playing.start()
        named.wait(10)
        yield
        listening.shutdown(socket.SHUT_RDWR)
        playing.join(10)


@contextmanager
def ras(
    hello: bytes = b"SERVER PROTOCOL 2\n", status: bytes | None = STATUS, json_too: bool = True, host: str = "127.0.0.1"
) -> Iterator[str]:
    """Play RAS, which speaks as client_support.cc does; `status` None: it never answers."""

    def answer(connection: socket.socket) -> None:
        form = b"text"
        with connection.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"CLIENT PROTOCOL "):
                    connection.sendall(hello)
                elif line == b"VERBOSE STATUS\n":
                    if status is not None:
                        connection.sendall(status if form == b"json" else b"NCCL version 2.24.3\n")
                        return
                elif line.startswith(b"TIMEOUT ") or (line == b"SET FORMAT json\n" and json_too):
                    form = b"json" if line.startswith(b"SET") else form
                    connection.sendall(b"OK\n")
                else:
                    connection.sendall(REFUSED)

    listening = socket.create_server((host, 0))
    with serving(listening, answer):
        yield f"localhost:{listening.getsockname()[1]}"


def test_json_is_asked_for_and_text_is_taken_of_a_server_that_has_none() -> None:
    with ras() as address:
        assert ask_ras(address, OWN) == STATUS.decode()
        assert ask_ras(address, ("999999999", *OWN)) == STATUS.decode()
    with ras(json_too=False) as address:
        assert ask_ras(address, OWN) == "NCCL version 2.24.3\n"
    with ras(host="127.0.0.9") as address:  # a rank is called at its own address, not at the one that it names
        assert ask_ras(f"127.0.0.1:{address.rpartition(':')[2]}", OWN) == STATUS.decode()


@each_row(
    ("server", "limits", "error", "words"),
    [
        ({"hello": b"HTTP/1.1 400 Bad Request\n"}, {}, Failed, r"port \d+: b'HTTP/1.1 400 Bad Request\\n' is not what"),
        ({"hello": b"x" * 5000}, {}, Failed, rf"port \d+: b'{'x' * 60}' is not what"),
        ({"status": None}, {"_RAS_S": 0.3}, TimedOut, r"NCCL's RAS on port \d+: no answer within 0.3 s$"),
        ({}, {"_RAS_S": 0, "time": SimpleNamespace(monotonic=lambda: 0.0)}, TimedOut, "no answer within 0 s"),
        ({"status": b"x" * 1001}, {"_RAS_BYTES": 1000}, Failed, "its answer is longer than 0 MiB"),
    ],
)
def test_another_protocol_silence_and_an_answer_without_an_end_are_refused(
    server: dict[str, bytes | None], limits: dict[str, object], error: type[HostError], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in limits.items():
        monkeypatch.setattr(rank_servers, name, value)
    with ras(**server) as address, pytest.raises(error, match=words):  # type: ignore[arg-type]
        ask_ras(address, OWN)
    if "_RAS_BYTES" in limits:
        with ras(status=b"x" * 1000) as address:
            assert len(ask_ras(address, OWN)) == 1000


@each_row(
    ("address", "words"),
    [
        ("localhost:65536", "'localhost:65536' is not an address: NCCL_RAS_ADDR is HOST:PORT"),
        ("localhost", "is not an address"), ("localhost:x", "is not an address"), ("a:b:1]", "is not an address"),
        ("localhost:1", "no process listens on port 1: NCCL before 2.24 has no RAS"),
        ("[::1]:65535", "no process listens on port 65535"),
    ],
)  # fmt: skip
def test_an_address_without_a_server_is_refused(address: str, words: str) -> None:
    with pytest.raises(Missing, match=re.escape(words)):
        ask_ras(address, OWN)
    with pytest.raises(Missing, match="no rank whose sockets can be read"):
        ask_ras("localhost:1", ("999999999",))


@pytest.mark.slow
def test_a_server_of_no_rank_of_the_job_is_not_even_called() -> None:
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
        "s.settimeout(60); s.accept(); print('called', flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        port = other.stdout.readline().strip()
        with pytest.raises(Denied, match=f"on port {port} another program listens, not a rank of this job"):
            ask_ras(f"localhost:{port}", OWN)
        other.kill()
        assert other.stdout.read() == ""


def test_a_connection_that_is_not_accepted_by_a_rank_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = rank_servers._own
    for answers, wanted in (([own, *[None] * 3, own], STATUS.decode()), ([own, *[None] * 4], Missing)):
        left = iter(answers)  # the first says whose the listening socket is, and then there are four tries
        monkeypatch.setattr(rank_servers, "_own", lambda *asked, left=left: (next(left) or (lambda *_: None))(*asked))
        with ras() as address:
            if wanted is not Missing:
                assert ask_ras(address, OWN) == wanted
            else:
                with pytest.raises(Missing, match="another job answers too, and none of this job's ranks did"):
                    ask_ras(address, OWN)


# torch's worker server.


@contextmanager
def worker(answer: bytes | None, listening: socket.socket) -> Iterator[str]:
    """Play a worker server that answers every call with `answer`; None: with nothing."""

    def say(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer) if answer is not None else connection.recv(1)

    with serving(listening, say, "pt_workerserver"):
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                rank_servers._address(OWN[0])
            except Missing:
                time.sleep(0.01)
            else:
                break
        yield OWN[0]


def tcp(host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def unix(name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(name)
    made.listen()
    return made


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


def test_the_worker_server_is_asked_at_the_port_or_the_path_on_which_its_thread_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_servers, "_WORKER_BYTES", len(OK) + 6)
    monkeypatch.chdir(tmp_path)  # a name may begin at the working directory of the process
    for listening in (tcp("::"), tcp("127.0.0.9"), unix(f"{tmp_path}/w  e"), unix("relative"), unix("\0of-the-test")):
        with worker(OK + b"{\r\n\r\n}", listening) as pid:
            assert ask_server(pid, "fr_trace_json") == "{\r\n\r\n}"


@each_row(
    ("answer", "limits", "error", "words"),
    [
        (b"HTTP/1.1 302 " + b"F" * 60 + b"\r\n\r\n", {}, Failed, f"fr_trace_json: b'HTTP/1.1 302 {'F' * 47}'$"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", {}, Failed, "fr_trace_json: b'HTTP/1.1 2000"),
        (None, {"_WORKER_S": 0.05}, TimedOut, "the worker server of process .*: no answer within 0.05 s"),
        (OK + b"x", {"_WORKER_BYTES": len(OK)}, Failed, "longer than"),
    ],
)
def test_another_answer_than_the_one_asked_for_is_refused_and_not_waited_for(
    answer: bytes | None, limits: dict[str, object], error: type[HostError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(rank_servers, name, value)
    with worker(answer, tcp()) as pid, pytest.raises(error, match=words):
        ask_server(pid, "fr_trace_json")


def test_a_process_without_a_worker_server_is_not_called() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:  # in this one a thread of another test may still be named so
        try:
            with pytest.raises(Missing, match="runs no worker server"):
                ask_server(other.pid, "fr_trace_json")
        finally:
            other.kill()


def test_a_path_that_leads_to_something_else_by_now_is_not_contacted(tmp_path: Path) -> None:
    with worker(OK + b"{}", unix(f"{tmp_path}/own")) as pid:
        (tmp_path / "own").unlink()
        (tmp_path / "own").write_text("x")
        with pytest.raises(Denied, match="/own' is not a socket of its user: it was not contacted"):
            ask_server(pid, "fr_trace_json")
        (tmp_path / "own").unlink()
        code = "import socket, sys; s = socket.socket(1); s.bind(sys.argv[1]); s.listen(); print(flush=True); input()"
        with subprocess.Popen([sys.executable, "-c", code, f"{tmp_path}/own"], stdin=-1, stdout=-1) as other:
            assert other.stdout
            other.stdout.readline()
            with pytest.raises(Denied, match=f"process {other.pid} listens on .*/own': it was not asked"):
                ask_server(pid, "fr_trace_json")
            if os.geteuid() == 0:
                os.chown(tmp_path / "own", 65534, 65534)
                with pytest.raises(Denied, match="is not a socket of its user"):
                    ask_server(pid, "fr_trace_json")
            other.kill()
