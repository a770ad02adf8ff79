"""Rules for the amount that an event in an engine or a router charges to a client."""
