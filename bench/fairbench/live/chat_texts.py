"""The texts and media of a chat that an engine's chat template may put into the prompt.

Messages of chat completions, items of the Responses API, and messages with Anthropic's blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

import msgspec

# Estimate for an image, a sound or a video, whose size in tokens depends on the model: an image of
# 1,024 x 1,024 pixels takes about 600 to 1,400 tokens in current models.
MEDIA_TOKENS = 1_024
_MEDIA = frozenset(
    {"image", "image_url", "input_image", "image_data", "image_embeds", "audio", "audio_url"}
    | {"input_audio", "video", "video_url", "input_video"}
)
_BESIDE_MESSAGES = (
    *("tools", "chat_template_kwargs", "reasoning_effort", "reasoning", "thinking"),
    *("text", "output_config"),
)
# Fields of a body with turns, first those before the others, and with the role of a text.
_TURNS = {"instructions": "system", "system": "system", "input": "user", "messages": "user"}
SEEN = (*_TURNS, *_BESIDE_MESSAGES)  # fields of a body that a template may see
_CONTENTS = ("content", "output")  # the latter in the result of a tool
_TURN = frozenset({"role", *_CONTENTS})


class Media(NamedTuple):
    """An image, a sound or a video; equal ones have equal keys."""

    key: int

    def ids(self) -> array[int]:
        """Return token ids of the estimated number."""
        return array("I", [self.key]) * MEDIA_TOKENS

    def words(self) -> str:
        """Return that number of words, for an engine that counts words."""
        letters = "".join(chr(ord("a") + int(digit, 16)) for digit in f"{self.key:08x}")
        return f" {letters}" * MEDIA_TOKENS


Piece: TypeAlias = str | Media


def media_of(content: object) -> Media:
    """Return the media of any JSON that holds or names them."""
    digest = sha256(msgspec.json.encode(content)).digest()
    return Media(int.from_bytes(digest[:4], "little"))


def beside_messages(body: Mapping[str, Any]) -> str:
    """Return tools and template arguments as JSON; templates put them before the messages."""
    return _json({name: body.get(name) for name in _BESIDE_MESSAGES})


def turns_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the turns of a body of any API: messages, items, and texts that stand for a message.

    A list of blocks, such as in ``system``, is the content of one message.
    """
    found: list[Mapping[str, Any]] = []
    for name, role in _TURNS.items():
        value = body.get(name) or ()
        if isinstance(value, str) or name == "system":
            found.append({"role": role, "content": value})
        else:
            found += value
    return [turn for turn in found if turn != {"role": "system", "content": ()}]


def pieces_of(message: Mapping[str, Any], start: str) -> list[Piece]:
    """Return ``start``, a message's content, and its other fields as JSON, such as tool calls.

    Adjacent texts are joined.
    """
    parts: list[Piece] = []
    for content in (message.get(name) for name in _CONTENTS):
        parts += _texts(content)
    others = _json({name: value for name, value in message.items() if name not in _TURN})
    joined: list[Piece] = []
    texts = [start]
    for piece in parts:
        if isinstance(piece, Media):
            joined += ["".join(texts), piece]
            texts = []
        else:
            texts.append(piece)
    return [*joined, "".join([*texts, others])]


def _parts(content: list[Any]) -> Iterator[Piece]:
    for part in content:
        for name, value in part.items():
            if name in _MEDIA or (name == "source" and part.get("type") == "image"):
                yield media_of(value)
            elif name != "type":
                yield from _texts(value)


def _texts(value: Any) -> Iterator[Piece]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(part, dict) for part in value):
        yield from _parts(value)  # the result of a tool, with parts of its own
    elif value is not None:
        yield msgspec.json.encode(value).decode()


def _json(fields: Mapping[str, Any]) -> str:
    known = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    return msgspec.json.encode(known).decode() if known else ""
