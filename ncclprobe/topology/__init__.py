"""Paths between the devices of a node, and the devices themselves."""
