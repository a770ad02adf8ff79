"""The router in front of servers: ``fairbench serve`` and the KV events that it follows."""

from fairbench.doors import Command

COMMAND = Command(
    "Real servers",
    "Route clients' requests to workers, with OpenAI's APIs.",
    "fairbench_serve.cli:serve",
)
