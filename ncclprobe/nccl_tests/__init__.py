"""Read the output of nccl-tests as our own rows: JSON (``-J``) and text tables.

The formats are those of nccl-tests a0b82b2 (2.19.6), src/util.cu, and the headers of older versions. The reader accepts
what these wrote: booleans as text, columns that only some versions have, several runs in one log, other programs' lines
in between. Missing values are not invented: a row's ``issue_us`` and ``footprint_bytes`` are then 0 and its
``slowest_rank`` is -1.
"""

from ncclprobe.nccl_tests.operation import NOT_GIVEN, Given
from ncclprobe.nccl_tests.reader import parse_json, parse_text
from ncclprobe.nccl_tests.rows import Run

__all__ = ["NOT_GIVEN", "Given", "Run", "parse_json", "parse_text"]
