"""``python -m ncclprobe``."""

from ncclprobe.start import program

if __name__ == "__main__":
    program()
