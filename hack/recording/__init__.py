"""Records the responses of real libvirts as test data."""
