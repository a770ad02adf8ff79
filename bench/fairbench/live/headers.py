"""Names of the HTTP headers that driver, router, emulator and servers share."""

# Headers that name the client, strongest first; the body's ``user`` comes after them (as in llm-d
# and smg).
CLIENT = "x-fairbench-client"
CLIENT_ALIASES = (CLIENT, "x-llm-d-inference-fairness-id", "x-smg-routing-key")
DEFAULT_CLIENT = "default"  # the client of requests that name none
# Fields of OpenAI's bodies that may name the client, too; for ``/generate`` the field counts as the
# first.
BODY_CLIENT = "user"
BODY_CLIENTS = (BODY_CLIENT, "safety_identifier", "prompt_cache_key")
# Names that no client can have: the label of all other clients, and a server's own requests.
OTHERS, HEALTH = "(others)", "(health)"
# Clients of Anthropic's API send their key here, and no ``Authorization``.
API_KEY = "x-api-key"
# SGLang's own name for ``Req.routing_key``, from which the plugin takes the client.
ROUTING_KEY = "x-smg-routing-key"
# Becomes vLLM's ``Request.session_id``, from which the plugin's scheduler takes the client.
SESSION = "x-session-id"

# The milliseconds until a request should be finished, and its objective, strongest name first
# (llm-d's, and the older one of the Gateway API inference extension).
DEADLINE = "x-request-deadline-ms"
OBJECTIVE_ALIASES = ("x-llm-d-inference-objective", "x-gateway-inference-objective")

PROGRAM = "x-fairbench-program"
DEPTH = "x-fairbench-depth"
# Set in the router's answer: the worker that served the request.
WORKER = "x-fairbench-worker"
# The routers that a request has passed, and the router that is responsible for its health.
ROUTERS = "x-fairbench-routers"
# Set in the router's answer: admission control placed the request behind the others.
DEMOTED = "x-fairbench-demoted"
# The true output length, read only by the emulator. Real servers ignore it.
OUTPUT_TOKENS = "x-fairbench-output-tokens"
