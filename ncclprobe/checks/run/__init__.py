"""What became of a measurement: did every rank come, stay, and carry the right bytes fast enough?"""

SOURCE = "run"
