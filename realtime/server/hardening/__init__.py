"""Limits on the memory and time of a peer before its request is complete."""
