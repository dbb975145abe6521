"""The sessions of this process by id, and their takeover from the store and other gateways."""
