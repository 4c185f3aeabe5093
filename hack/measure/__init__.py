"""Benchmarks of Drydock, each compared with the raw tools in the same run."""
