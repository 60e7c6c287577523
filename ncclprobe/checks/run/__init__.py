"""The outcome of a measurement: did every rank join, stay, and carry the right bytes fast enough?"""

SOURCE = "run"
