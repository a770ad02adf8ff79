"""Compare a soak's router logs with clients' observations, ``/metrics`` and credits."""

import json
from collections import Counter, defaultdict

QUANTUM = 40_000  # D2LPM's default
OUTCOMES = ("ok", "error", "left", "evicted", "lost", "retried")


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def compared_with_clients(log, ended, router):
    """Return complaints unless each whole answer is in the log once, with client and length."""
    finishes = defaultdict(list)
    for row in log:
        if row[0] == "finish":
            finishes[row[2]].append((row[3], row[5]))
    wrong = []
    for number, one in ended.items():
        whole = one.router == router and one.how == "ok"
        if whole and finishes[number] != [(one.client, one.output)]:
            wrong.append(f"request {number}: {one}, in the log {finishes[number]}")
    for number, found in finishes.items():
        if number in ended and any(client != ended[number].client for client, _ in found):
            wrong.append(f"request {number} of {ended[number].client}: in the log {found}")
    return wrong


def compared_with_books(log, ended, router, books):
    """Return complaints unless ``/metrics`` adds up to the log's tokens and requests by client.

    ``books(name, **labels)`` is a metric's value. The log has prompt tokens only for requests whose
    ids the router knows, so prompts are compared with the clients' figures and bounded by them.
    """
    wrong, output, requests = [], Counter(), Counter()
    for row in log:
        if row[0] in ("finish", "fail"):  # once for each time that a request was sent to a worker
            requests[row[3]] += 1
        if row[0] == "finish":
            output[row[3]] += row[5]
    mine = [one for one in ended.values() if one.router == router]
    for client in {one.client for one in mine}:
        told = int(books("output_tokens_total", client=client))
        if told != output[client]:
            wrong.append(f"{client}: {told} output tokens in /metrics, {output[client]} in the log")
        booked = sum(books("requests_total", client=client, outcome=name) for name in OUTCOMES)
        left = sum(one.how == "left" for one in mine if one.client == client)
        # some log entries precede the sending
        if not requests[client] - left <= booked <= requests[client]:
            wrong.append(f"{client}: {booked} requests in /metrics, {requests[client]} in the log")
        own = [one for one in mine if one.client == client]
        whole = sum(one.how == "ok" for one in own)
        most = whole + sum(one.how in ("left", "lie", "failed") for one in own)
        ok = books("requests_total", client=client, outcome="ok")
        if not whole <= ok <= most:
            wrong.append(f"{client}: {ok} ok in /metrics, of {whole} to {most}")
        least = sum(one.prompt for one in own)
        if books("input_tokens_total", client=client) < least:
            wrong.append(f"{client}: fewer input tokens in /metrics than the {least} of answers")
    return wrong


def left_behind(log):
    """Return the work that a fair-finish router still records when no request is in flight."""
    return [row[1] for row in log if row[0] == "backlogs" and any(row[1].values())]


def recounted(log):
    """Recompute every D2LPM credit by its definition, at each row that states the router's own.

    Yields pairs: recomputed, stated.
    """
    live, credit, charged = set(), {}, {}
    for kind, *row in log:
        if kind == "workers":
            live = set(range(row[0]))
        elif kind == "route":
            request, _, client, worker, tokens = row
            own = credit.setdefault(client, dict.fromkeys(live, 0))
            while not any(left > 0 for left in own.values()):
                for each in own:
                    own[each] += QUANTUM
            assert own[worker] > 0, f"{client} was sent to {worker} without credit"
            own[worker] -= tokens
            charged[request] = worker, tokens
        elif kind in ("finish", "fail"):
            request, _, client, worker, *produced = row
            at, tokens = charged.pop(request, (None, 0))
            if at != worker:
                continue  # the request has left this worker
            own = credit[client]
            if kind == "finish":
                own[worker] -= 2 * produced[0]
            else:
                own[worker] = max(own[worker], min(own[worker] + tokens, QUANTUM))
        elif kind in ("leave", "join"):
            worker = row[0]
            live.discard(worker)
            charged = {one: paid for one, paid in charged.items() if paid[0] != worker}
            for own in credit.values():
                own.pop(worker, None)
            if kind == "join":
                live.add(worker)
                for own in credit.values():
                    own[worker] = QUANTUM  # `serve` sets `d2lpm.fill_below`
        elif kind == "credits":
            said = {
                client: {int(worker): left for worker, left in own.items()}
                for client, own in row[0].items()
            }
            yield {client: dict(own) for client, own in credit.items()}, said
