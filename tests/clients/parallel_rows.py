"""The flows with two calls in one response."""

PARALLEL = ("two_calls_in_an_answer", "two_calls_in_a_response", "two_calls_in_a_chat")
