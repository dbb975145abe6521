"""The process: command line, settings, the web application, who may enter, what is logged."""
