"""``torchrun -m ncclprobe.copies``: the command, where a launcher starts modules."""

import sys

from ncclprobe.__main__ import main

if __name__ == "__main__":
    sys.exit(main(command="copies"))
