"""A process that reads logs one by one, so that several cores share the work of :mod:`ncclprobe.logs.reader`."""

import os
import sys

import msgspec

from ncclprobe.host.job_files import Blocks, JobFile
from ncclprobe.host.limited_child import LENGTH, framed
from ncclprobe.logs.job_log import LogStream, ReadLog
from ncclprobe.logs.reader import Reader
from ncclprobe.model.errors import UsageError
from ncclprobe.model.values import Struct, replace


class LogRequest(Struct, frozen=True):
    """Read this log. `signs` are None if they are those of the request before; `most` events are kept."""

    file: JobFile
    most: int
    signs: tuple[str, ...] | None = None


def answered(file: JobFile, reader: Reader) -> ReadLog:
    """Return the content of one log; if it cannot be read, the reason."""
    blocks = Blocks(file)
    try:
        read = reader.read_one(file.name, blocks)
    except UsageError as error:
        return ReadLog(LogStream(file.name, cut=str(error)))
    read.stream = replace(read.stream, cut=blocks.cut)
    return read


def serve() -> None:
    """Be a child that reads one log after the other: answer requests of standard input, each with its length before it,
    until it closes.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    sys.stdin.close()
    reader = Reader()
    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        request = msgspec.msgpack.decode(requests.read(LENGTH.unpack(head)[0]), type=LogRequest)
        if request.signs is not None:
            reader = Reader(request.signs, request.most)
        answers.write(framed(msgspec.msgpack.encode(answered(request.file, reader))))
        answers.flush()
