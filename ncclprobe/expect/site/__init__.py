"""What a site expects by itself: bands, baselines of earlier runs, how two runs compare, and the verdict on a row."""
