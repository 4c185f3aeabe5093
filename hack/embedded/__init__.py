"""A real Kubernetes on one machine: built from Go modules, run without an engine.

Other Python code uses `cluster`; people and other programs use `python3 -m embedded`.
"""
