"""``python -m ncclprobe.probes.verbs``: test one rail between two hosts by hand, and print each end's result, as JSON.

Start one host with ``--listen PORT``, the other with ``--call HOST PORT``: that one leads, and decides what is tested.
Both need the same text in NCCLPROBE_TOKEN. `ncclprobe rails` is the command for whole clusters; this one needs no
launcher and makes no choices, so a single port and GID can be tried.
"""

import argparse
import asyncio
import contextlib
import hashlib
import os
import socket
import sys
import time
from collections.abc import Sequence

import msgspec

from ncclprobe.model.errors import UsageError
from ncclprobe.model.rails import RailOutcome, RailPort, RailTest
from ncclprobe.model.values import asdict
from ncclprobe.probes.verbs.pair import run_rail
from ncclprobe.wire import Wire, WireError, accept, connect

_TOKEN = "NCCLPROBE_TOKEN"
_GREETING_S = 30.0


def main(argv: Sequence[str]) -> int:
    """Test, print and return 0 if this end saw no failure, otherwise 4; 2 for wrong usage, 3 if no peer called."""
    options = _parser().parse_args(argv)
    token = os.environ.get(_TOKEN)
    if not token:
        print(f"{_TOKEN} must be set, to the same text on both hosts", file=sys.stderr)
        return 2
    try:
        outcome = asyncio.run(_run(options, hashlib.sha256(token.encode()).digest()))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except (WireError, OSError) as error:
        print(f"the other host: {error}", file=sys.stderr)
        return 3
    print(msgspec.json.encode(outcome).decode())
    return 4 if outcome.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ncclprobe.probes.verbs", description=__doc__)
    ends = parser.add_mutually_exclusive_group(required=True)
    ends.add_argument(
        "--listen",
        type=int,
        metavar="PORT",
        help="Wait for the other host, which leads; 0: on any free port, which is printed.",
    )
    ends.add_argument("--call", nargs=2, metavar=("HOST", "PORT"), help="Call the other host, and lead.")
    parser.add_argument("--end-after", type=float, default=60.0, metavar="SECONDS", help="End after so many seconds.")
    _fields(parser.add_argument_group("the port of this host"), RailPort(device=""))
    _fields(parser.add_argument_group("the test, if this end leads"), RailTest())
    return parser


def _fields(group: "argparse._ArgumentGroup", defaults: RailPort | RailTest) -> None:
    """Add an option for every field of the value, named as the field is; the transport is the verbs library here."""
    for name, default in asdict(defaults).items():
        if name in ("transport", "program"):
            continue
        group.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=f"(default: {default})")


def _given(options: argparse.Namespace, kind: type[RailPort] | type[RailTest]) -> dict[str, object]:
    """Return the fields of `kind` that are among the options; a list is written with commas."""
    found = {name: getattr(options, name) for name in kind.__struct_fields__ if hasattr(options, name)}
    return {name: text.split(",") if name == "directions" else text for name, text in found.items()}


async def _run(options: argparse.Namespace, key: bytes) -> RailOutcome:
    """Meet the other host and test. Raises UsageError, WireError, OSError."""
    deadline = time.monotonic() + options.end_after
    try:
        port = msgspec.convert(_given(options, RailPort), RailPort, strict=False)
        test = msgspec.convert(_given(options, RailTest), RailTest, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from None
    wire = await (_call(options.call, key, deadline) if options.call else _called(options.listen, key, deadline))
    try:
        if options.call:
            await wire.send(asdict(test), deadline)
        else:
            test = msgspec.convert(await wire.receive(deadline), RailTest)
        return await run_rail(port, test, leads=bool(options.call), channel=wire, deadline=deadline)
    except msgspec.ValidationError as error:
        raise WireError("garbled", f"asks for an unknown test: {error}") from None
    finally:
        wire.close()


async def _call(to: Sequence[str], key: bytes, deadline: float) -> Wire:
    """Call until the other host listens. Raises WireError."""
    while True:
        try:
            return await connect(to[0], int(to[1]), key, deadline, patience_s=_GREETING_S)
        except WireError as error:
            if error.kind != "refused" or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)


async def _called(port: int, key: bytes, deadline: float) -> Wire:
    """Wait for the other host. Raises WireError, OSError."""
    met: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(WireError):  # a stranger
            wire = await accept(reader, writer, key, deadline)
            if met.done():
                wire.close()
            else:
                met.set_result(wire)

    both = socket.has_dualstack_ipv6()
    listener = socket.create_server(("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
    server = await asyncio.start_server(answer, sock=listener)
    print(f"waiting on port {server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    try:
        return await asyncio.wait_for(met, max(0.0, deadline - time.monotonic()))
    except (asyncio.TimeoutError, TimeoutError):
        raise WireError("silent", f"did not call port {port}") from None
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
