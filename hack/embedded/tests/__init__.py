"""Unit tests, which need no cluster: `python3 -m unittest discover -s hack -t hack`."""
