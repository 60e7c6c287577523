"""The only way from looking to a verdict: collect facts, judge them, and make the report."""
