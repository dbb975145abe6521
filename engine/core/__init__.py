"""The engine loop: sessions, their sequences, the scheduler and the KV cache. Imports no torch."""
