"""The simulator compared with runs in which several tenants use an engine directly."""
