"""Training recipe of the bundled demo model, independent of the server's code."""
