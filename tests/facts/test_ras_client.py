"""The client of NCCL's RAS, against a small server that speaks as client_support.cc does, in this very process."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from ncclprobe.host import rank_servers
from ncclprobe.host.rank_servers import ask_ras
from ncclprobe.model.errors import Denied, Failed, Missing, TimedOut

OWN = (str(os.getpid()),)
HELLO = b"SERVER PROTOCOL 2\n"


@contextmanager
def server(
    hello: bytes = HELLO,
    *,
    json_too: bool = True,
    status: bytes | None = b'{"nccl_version": "2.28.9"}',
    host: str = "127.0.0.1",
) -> Iterator[str]:
    """Play RAS at `host`; `status` None: it never answers."""
    with socket.create_server((host, 0)) as listening:

        def one(connection: socket.socket) -> None:
            with connection, suppress(OSError), connection.makefile("rb") as lines:
                form = b"text"
                for line in lines:
                    if line.startswith(b"CLIENT PROTOCOL "):
                        connection.sendall(hello)
                    elif line.startswith(b"TIMEOUT "):
                        connection.sendall(b"OK\n")
                    elif line == b"SET FORMAT json\n" and json_too:
                        form = b"json"
                        connection.sendall(b"OK\n")
                    elif line == b"VERBOSE STATUS\n" and status is not None:
                        connection.sendall(status if form == b"json" else b"NCCL version 2.24.3\n")
                        return
                    elif line != b"VERBOSE STATUS\n":
                        connection.sendall(b"ERROR: Unknown command\n")

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        playing = threading.Thread(target=serve, daemon=True)
        playing.start()
        yield f"localhost:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        playing.join(10)


def test_json_is_asked_for_and_text_is_taken_of_a_server_that_has_none() -> None:
    with server() as address:
        assert json.loads(ask_ras(address, OWN)) == {"nccl_version": "2.28.9"}
    with server(json_too=False) as address:
        assert ask_ras(address, OWN) == "NCCL version 2.24.3\n"


def test_a_rank_is_called_at_its_own_address_and_not_at_the_one_that_it_names() -> None:
    with server(host="127.0.0.9") as address:
        port = address.rpartition(":")[2]
        assert json.loads(ask_ras(f"127.0.0.1:{port}", OWN)) == {"nccl_version": "2.28.9"}


@pytest.mark.slow
def test_a_server_of_no_rank_of_the_job_is_not_even_called() -> None:
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
        "s.settimeout(60); s.accept(); print('called', flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        port = other.stdout.readline().strip()
        with pytest.raises(Denied, match="another program listens, not a rank of this job"):
            ask_ras(f"localhost:{port}", OWN)
        other.kill()
        assert other.stdout.read() == ""


def test_a_connection_that_is_not_accepted_by_a_rank_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([rank_servers._own, *[lambda *_: None] * 4])
    monkeypatch.setattr(rank_servers, "_own", lambda *asked: next(answers)(*asked))
    with server() as address, pytest.raises(Missing, match="another job answers"):
        ask_ras(address, OWN)


def test_a_port_that_is_none_is_not_looked_for() -> None:
    with pytest.raises(Missing, match="is not an address"):
        ask_ras("localhost:70000", OWN)


def test_another_protocol_is_told_from_it() -> None:
    with (
        server(b"HTTP/1.1 400 Bad Request\n") as address,
        pytest.raises(Failed, match="is not what NCCL's RAS answers"),
    ):
        ask_ras(address, OWN)


def test_a_server_without_an_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_servers, "_RAS_S", 0.3)
    with server(status=None) as address, pytest.raises(TimedOut, match="no answer within"):
        ask_ras(address, OWN)


def test_an_answer_without_an_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_servers, "_RAS_BYTES", 1000)
    with server(status=b"x" * 5000) as address, pytest.raises(Failed, match="longer than"):
        ask_ras(address, OWN)


@pytest.mark.parametrize("address", ["localhost", "localhost:x", "localhost:1"])
def test_an_address_without_a_server_is_refused(address: str) -> None:
    with pytest.raises(Missing):
        ask_ras(address, OWN)
