"""Real failures, made in the lab and recorded: see scripts/record_failures.py."""
