"""Shared test support: fakes of Protocols, and real servers and processes started for a test."""
