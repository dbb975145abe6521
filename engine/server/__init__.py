"""The engine process around its loop: its start, its clients, and the sessions they hold."""
