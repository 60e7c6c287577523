"""Who the ranks of a run are, how they start and meet, and what they leave behind."""
