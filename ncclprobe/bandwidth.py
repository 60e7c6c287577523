"""``torchrun -m ncclprobe.bandwidth``: the command, where a launcher starts modules."""

from ncclprobe.start import program

if __name__ == "__main__":
    program("bandwidth")
