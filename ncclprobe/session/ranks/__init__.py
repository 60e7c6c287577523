"""The ranks of a run: how they start, identify themselves, agree, exchange values and exit."""
