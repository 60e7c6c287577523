"""``torchrun -m ncclprobe.doctor``: the command, for launchers that start modules."""

from ncclprobe.start import program

if __name__ == "__main__":
    program("doctor")
