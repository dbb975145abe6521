"""Limits on what a peer may cost before its request is read."""
