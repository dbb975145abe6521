"""Tenants of this process: their limits, what they use, and the turns that they may run at once."""
