"""Options of the command line, the environment and the configuration file."""
