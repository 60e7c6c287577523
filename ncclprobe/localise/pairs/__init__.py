"""Find slow parts from pair samples: plan which ranks talk, and conclude from the rates which part is slow.

`rounds` plans what is measured, and what again with which partners, a caller measures, `effects` says what is slower
than comparable samples, `causes` what could explain it, and how strongly the samples speak for that, and `suspects`
decides by it, names few parts rather than many, and is all of that in its order.
Pure: no clock, no socket, no torch, and no randomness; the same samples give the same answer, on a cluster and on a
simulated one.
"""
