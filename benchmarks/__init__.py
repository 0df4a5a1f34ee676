"""Benchmarks: `python -m benchmarks NAME [--json FILE]`. Each compares both sides alternately in one run."""
