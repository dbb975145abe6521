"""The server process: command line, settings, web application, authentication and logging."""
