"""Find slow parts from pair samples: plan which ranks talk, and conclude from the rates which part is slow.

`rounds` plans the measurements, and the retests with their partners; a caller measures. `effects` finds what is slower
than comparable samples. `causes` lists possible causes, and how strongly the samples support each. `suspects` decides
on that basis, prefers few parts to many, and runs all of it in order.
Pure: no clock, no socket, no torch, no randomness; the same samples give the same answer, on a real cluster and on a
simulated one.
"""
