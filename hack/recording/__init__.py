"""Records what real libvirts say, as test data."""
