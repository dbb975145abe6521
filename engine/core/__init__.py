"""Engine core: the loop, sessions and their sequences, the scheduler and the KV cache. Imports no
torch."""
