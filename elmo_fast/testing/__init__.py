"""Models and tolerances that tests and benchmarks share."""
