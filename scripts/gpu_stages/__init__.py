"""The stages of `scripts/gpu_hour.py`, one module each, and what they share: processes that end, steps, summaries."""
