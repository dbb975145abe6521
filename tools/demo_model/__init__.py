"""The recipe of the bundled demo model; knows nothing of the server."""
