"""Targets: what a workload measures. This engine, this server, any OpenAI-compatible server, or a
competitor's engine, each behind the same two classes, `Target` and `Session`."""
