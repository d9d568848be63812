"""Comparisons with other libraries, one module a library; `benchmarks.peer_differences` runs them."""
