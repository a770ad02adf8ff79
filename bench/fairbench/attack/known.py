"""Known attacks, from which the files in ``workloads/attacks/`` are written."""

from __future__ import annotations

from collections.abc import Mapping

from fairbench.attack.behaviour import Behaviour

KNOWN: Mapping[str, Behaviour] = {
    "sybil": Behaviour(identities=5),
    "fresh-names": Behaviour(identities=8, in_turn=True, period_s=20.0),
    "padding-3k": Behaviour(padding_tokens=3000),
    "padding-20k": Behaviour(padding_tokens=20_000),
    "victims-prefix": Behaviour(padding_tokens=3000, padding_of_victim=True),
    "small-requests": Behaviour(split=8),
    "bursts": Behaviour(on_share=0.25, period_s=60.0),
    "leave-and-rejoin": Behaviour(on_share=0.5, period_s=20.0),
    "large-reservations": Behaviour(max_new_multiple=100.0),
    "one-at-a-time": Behaviour(in_flight=8),
    # Found by a search against `fair-finish` with all defences.
    "long-context-bursts": Behaviour(
        identities=2, padding_tokens=20_000, split=8, max_new_multiple=4.0, on_share=0.1
    ),
    "long-answers": Behaviour(output_multiple=16),
    "long-decoder": Behaviour(padding_tokens=8000, output_multiple=16),
    # Found by a search against `fair-finish` with client limits, except the limit on requests.
    "long-answer-bursts": Behaviour(identities=5, on_share=0.1, output_multiple=16),
}
