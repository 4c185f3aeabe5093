"""Tests of what can be tested without a cluster: `python3 -m unittest discover -s hack -t hack`."""
