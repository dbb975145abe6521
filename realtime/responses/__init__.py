"""The Responses API without a session: responses that continue from one another."""
