"""Heartbeats, deadlines and signals: how a run ends that cannot end by itself."""
