"""Our own C for the CPU: a whole step of a Llama-family model in one call."""
