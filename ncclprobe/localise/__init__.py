"""From unreachable or slow pairs to the part to blame. Pure."""
