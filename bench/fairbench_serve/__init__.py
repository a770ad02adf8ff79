"""The router in front of servers: the command ``fairbench serve``."""

from fairbench.doors import Command

COMMAND = Command(
    "Real servers",
    "Route the requests of clients to workers, with OpenAI's APIs.",
    "fairbench_serve.cli:serve",
)
