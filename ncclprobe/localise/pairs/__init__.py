"""Who talks to whom, and what follows from how fast it went: plans of pairs as data, and from samples to a culprit.

`rounds` plans, somebody measures, `effects` says what is slower than its like, `causes` what could explain it,
`retests` whom to measure again beside whom, `culprit` decides, `inquiry` is all of that in its order. Pure: no clock,
no socket, no torch, and no randomness; the same samples give the same answer, on a cluster and on a simulated one.
"""
