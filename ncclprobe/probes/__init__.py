"""Measurements: with torch (the modules here), or with libibverbs (``verbs/``, which never loads torch)."""
