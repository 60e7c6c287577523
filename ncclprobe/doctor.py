"""``torchrun -m ncclprobe.doctor``: the command, where a launcher starts modules."""

from ncclprobe.start import program

if __name__ == "__main__":
    program("doctor")
