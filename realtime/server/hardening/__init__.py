"""Limits on the memory and time that a client may take before its request is complete."""
