"""The shared store: one Redis for several gateways."""
