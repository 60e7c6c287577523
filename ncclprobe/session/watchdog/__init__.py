"""Heartbeats, deadlines and signals: end a run that cannot end by itself."""
