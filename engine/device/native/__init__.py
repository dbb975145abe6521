"""The native decoder: a whole CPU step of a Llama-family model in one call of our own C."""
