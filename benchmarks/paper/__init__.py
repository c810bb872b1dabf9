"""The experiments of the DL2 paper (arXiv 1909.06040, section 6), in simulation: ``python -m benchmarks.paper``."""
