"""The library against what its users would write or install instead: `python -m benchmarks NAME`."""
