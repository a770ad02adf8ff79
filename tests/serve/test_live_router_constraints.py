"""Test grammars, patterns and stops that an engine would evaluate at every step."""

import asyncio
import json

import pytest

from tests.serve.live_router import CHAT, COMPLETIONS, GENERATE, MESSAGES, PATHS, cluster

BOMB = "(.|.|.)+ZZZ"


def ask(path, fields, **router):
    """Return the status, the message, and the body that the worker got, if any."""

    async def run():
        async with cluster(1, router=router) as (under_test, (worker,)):
            async with under_test.post(path, {**PATHS[path], **fields}) as answer:
                said = await answer.text()
            return answer.status, said, worker.seen[0][2] if worker.seen else None

    return asyncio.run(run())


def sampling(**fields):
    return {"sampling_params": fields}


def formatted(schema):
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    }


def tool(schema):
    return {"tools": [{"type": "function", "function": {"name": "a", "parameters": schema}}]}


PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": BOMB}}}
PATTERNS = [
    (GENERATE, sampling(stop_regex=BOMB)),
    (GENERATE, sampling(stop_regex=[BOMB])),
    (GENERATE, sampling(regex=BOMB)),
    (GENERATE, sampling(ebnf='root ::= "a" root')),
    (GENERATE, sampling(structural_tag="{}")),
    (GENERATE, sampling(json_schema=json.dumps(PATTERN))),
    (COMPLETIONS, {"stop_regex": BOMB}),
    (COMPLETIONS, {"json_schema": json.dumps(PATTERN)}),
    (CHAT, {"regex": BOMB}),
    (CHAT, {"ebnf": 'root ::= "a" root'}),
    (CHAT, formatted(PATTERN)),
    (CHAT, formatted({"patternProperties": {BOMB: {}}})),
    (CHAT, tool(PATTERN)),
    (CHAT, {"response_format": {"type": "structural_tag", "format": {"type": "regex"}}}),
]


@pytest.mark.parametrize(("path", "fields"), PATTERNS)
def test_patterns_and_grammars_need_permission_of_the_operator(path, fields):
    status, said, reached = ask(path, fields)
    assert (status, reached) == (400, None)
    assert "--allow-regex" in said


@pytest.mark.parametrize(("path", "fields"), PATTERNS)
def test_permitted_patterns_and_grammars_reach_the_worker(path, fields):
    status, _, reached = ask(path, fields, patterns=True)
    assert status == 200
    assert all(name in reached for name in fields)


@pytest.mark.parametrize(
    "name",
    [
        *("guided_regex", "guided_json", "guided_grammar", "guided_choice", "structured_outputs"),
        *("guided_decoding_backend", "logits_processors", "vllm_xargs", "bad_words"),
        *("allowed_token_ids", "custom_logit_processor", "custom_params", "prompt_logprobs"),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_other_engines_constraint_fields_never_reach_a_worker(path, name):
    status, said, reached = ask(path, {name: BOMB}, patterns=True)
    assert (status, reached) == (400, None)
    assert name in said


def nested(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def laughs(levels):
    """Return a schema whose references double its expansion at every level."""
    both = {"anyOf": [{"type": "null"}, {"type": "string"}]}
    table = {"0": both}
    for level in range(1, levels):
        below = {"$ref": f"#/$defs/{level - 1}"}
        table[str(level)] = {"properties": dict.fromkeys("ab", below)}
    return {"$defs": table, "$ref": f"#/$defs/{levels - 1}"}


TOO_MUCH = [
    nested(40),
    laughs(14),
    {"enum": ["a"] * 5_000},
    {"const": "a" * 100_000},
    {"type": "string", "maxLength": 10_001},
    {"type": "array", "maxItems": 101, "items": {"type": "string", "minLength": 100}},
    {
        "$defs": {"a": {"type": "string", "maxLength": 101}},
        "items": {"$ref": "#/$defs/a"},
        "maxItems": 100,
    },
    {"$ref": "http://127.0.0.1/schema"},
    {"$ref": ["#"]},
    {"$ref": "#/enum/0", "enum": [{"pattern": BOMB}]},
    {"$ref": "#/$defs/a/items", "$defs": {"a": {"items": {"type": "string"}}}},
    {"type": "integer", "maximum": 10**30},
    {"type": "integer", "maxLength": 10**400},
    {"type": "string", "maxLength": 10**9},
    {"type": "object", "properties": {str(n): {} for n in range(5_001)}},
    {"$dynamicRef": "http://127.0.0.1/schema"},
    {"title": "a", "definitions": {"a": nested(33)}, "$ref": "#/definitions/a"},
]


DEEP_VALUE = {"enum": [json.loads("[" * 500 + "]" * 500)]}
FORBIDDEN = [
    PATTERN,
    {"patternProperties": {BOMB: {}}},
    {"$defs": {"a": {"pattern": BOMB}}, "$ref": "#/$defs/a"},
    {"dependencies": {"description": {"pattern": BOMB}}},
    {"dependentSchemas": {"enum": {"pattern": BOMB}}},
    {"title": {"pattern": BOMB}},
    {"anyOf": [{"not": [{"contentSchema": {"Pattern": BOMB}}]}]},
]


@pytest.mark.parametrize("schema", TOO_MUCH)
@pytest.mark.parametrize("how", [formatted, tool])
def test_schemas_have_bounds(schema, how):
    status, said, reached = ask(CHAT, how(schema), patterns=True)
    assert (status, reached) == (400, None)
    assert json.loads(said)["error"]["message"].startswith(*how({}))


def system(**fields):
    return {"messages": [{"role": "system", "content": "a", **fields}]}


def beside(schema):
    return {"response_format": {"type": "json_schema", "schema": schema}}


PLACES = {
    "beside": beside,
    "beside an empty one": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {}, "schema": schema}
    },
    "under a field's Python name": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema_": schema}}
    },
    "as the format itself": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": schema}
    },
    "of a JSON object": lambda schema: {"response_format": {"type": "json_object", "s": schema}},
    "of plain text": lambda schema: {"response_format": {"type": "text", "value": [schema]}},
    "as text beside": lambda schema: beside(" " + json.dumps(schema)),
    "of a result": lambda schema: {
        "tools": [{"type": "function", "function": {"name": "a", "response": schema}}]
    },
    "of a flat tool": lambda schema: {"tools": [{"name": "a", "input_schema": schema}]},
    "of a custom tool": lambda schema: {"tools": [{"type": "custom", "custom": {"f": schema}}]},
    "of a choice": lambda schema: {
        "tool_choice": {"type": "allowed_tools", "allowed_tools": tool(schema)}
    },
    "of a message": lambda schema: system(**tool(schema)),
    "of a message's format": lambda schema: system(**beside(schema)),
    "as text in a message": lambda schema: system(tools=json.dumps([tool(schema)])),
    "of a message's functions": lambda schema: system(functions=[{"parameters": schema}]),
    "of a stream": lambda schema: {"stream_options": {"guided_json": schema}},
    "in a text": lambda schema: {"json_schema": json.dumps(schema)},
}


def statuses(path, bodies, **router):
    """Return the status of each body, and how many reached the worker."""

    async def run():
        async with cluster(1, router=router) as (under_test, (worker,)):
            found = []
            for fields in bodies:
                async with under_test.post(path, {**PATHS[path], **fields}) as answer:
                    await answer.read()
                    found.append(answer.status)
            return found, len(worker.seen)

    return asyncio.run(run())


@pytest.mark.parametrize("place", PLACES)
def test_a_schema_has_the_same_bounds_wherever_it_stands(place):
    bodies = [PLACES[place](schema) for schema in [*TOO_MUCH, DEEP_VALUE]]
    assert statuses(CHAT, bodies, patterns=True) == ([400] * len(bodies), 0)
    assert statuses(CHAT, map(PLACES[place], FORBIDDEN)) == ([400] * len(FORBIDDEN), 0)
    ordinary = [PLACES[place](ORDINARY)]
    assert statuses(CHAT, ordinary) == ([200], 1)


def test_a_long_list_of_ordinary_tools_is_forwarded_unchanged():
    tools = [tool(ORDINARY)["tools"][0] for _ in range(100)]
    for fields in ({"tools": tools}, system(tools=tools)):
        status, _, reached = ask(CHAT, fields)
        assert (status, reached) == (200, {**PATHS[CHAT], **fields})


ANSWERED = [
    {
        "role": "assistant",
        "content": None,
        "refusal": "{no}",
        "audio": None,
        "annotations": [{"type": "url_citation", "title": "a", "text": "{curly} and [square"}],
        "function_call": {"name": "a", "arguments": '{"pattern": "x"}'},
        "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": '{"regex": "x"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": '{"pattern": "x"}'},
]


def test_names_that_a_client_chose_are_not_keywords():
    named = {"$ref": "#/$defs/regex_search"}
    schema = {
        "$defs": {"regex_search": {"properties": {"grammar": {"type": "string"}}}},
        "oneOf": [named],
        "discriminator": {"propertyName": "pattern", "mapping": {"regex": "#/$defs/regex_search"}},
        "properties": {"search_pattern": {"enum": ["regex", "ebnf"]}, "pattern": named},
        "dependentRequired": {"pattern": ["search_pattern"]},
        "description": "a pattern",
    }
    for how in (formatted, beside, tool):
        status, _, reached = ask(CHAT, how(schema))
        assert (status, reached) == (200, {**PATHS[CHAT], **how(schema)})


def test_messages_that_hold_earlier_answers_are_forwarded_unchanged():
    fields = {"messages": [*ANSWERED, *({"role": "user", "content": "a", "id": "{"},) * 6_000]}
    status, _, reached = ask(CHAT, fields)
    assert (status, reached) == (200, {**PATHS[CHAT], **fields})


GRAMMARS = [
    {"tools": [{"type": "custom", "custom": {"format": {"type": "grammar", "definition": BOMB}}}]},
    {"tools": [{"type": "custom", "format": {"syntax": "lark", "type": "Grammar"}}]},
    {"tools": [{"type": "function", "function": {"name": "a", "regex": BOMB}}]},
    {"tool_choice": {"structural_tag": {}}},
    {"response_format": {"type": "text", "guided_regex": BOMB}},
    {"response_format": {"type": "json_schema", "json_schema": {"ebnf": BOMB}}},
    {"response_format": {"type": "json_object", "whitespace_pattern": BOMB}},
    {"response_format": ["regex", BOMB]},
    {"response_format": BOMB},
    formatted({"x-guidance": {"item_separator": BOMB}}),
    system(response_format={"type": "regex", "value": BOMB}),
    system(structured_outputs={"grammar": BOMB}),
    system(structural_tag=json.dumps({"format": {"type": "regex"}})),
]


def test_grammars_need_permission_wherever_they_stand():
    assert statuses(CHAT, GRAMMARS) == ([400] * len(GRAMMARS), 0)
    found, reached = statuses(CHAT, GRAMMARS, patterns=True)
    assert (found, reached) == ([200] * len(GRAMMARS), len(GRAMMARS))


def test_of_a_messages_repeated_key_the_worker_reads_the_checked_value():
    text = (
        '{"model": "m", "messages": [{"role": "user", "content": "a", "tools": [1], "tools": []}]}'
    )

    async def run():
        async with (
            cluster(1) as (under_test, (worker,)),
            under_test.session.post(under_test.url + CHAT, data=text) as answer,
        ):
            return answer.status, worker.seen[0][2]["messages"]

    assert asyncio.run(run()) == (200, [{"role": "user", "content": "a", "tools": []}])


def test_schemas_given_as_text_have_the_same_bounds():
    for schema in TOO_MUCH:
        assert ask(GENERATE, sampling(json_schema=json.dumps(schema)))[0] == 400
    assert ask(GENERATE, sampling(json_schema="{"))[0] == 400


ORDINARY = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}},
        }
    },
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "maxLength": 200, "description": "prose " * 1_000},
        "all": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 50},
        "kind": {"enum": ["a", "b", None, 1.5]},
    },
    "required": ["pattern", "all"],
    "additionalProperties": False,
}


def test_an_ordinary_schema_is_forwarded_unchanged():
    for how in (formatted, tool):
        status, _, reached = ask(CHAT, how(ORDINARY))
        assert status == 200
        assert reached == {**PATHS[CHAT], **how(ORDINARY)}
    status, _, reached = ask(GENERATE, sampling(json_schema=json.dumps(ORDINARY)))
    assert status == 200
    assert json.loads(reached["sampling_params"]["json_schema"]) == ORDINARY
    for plain in ({"type": "text"}, {"type": "json_object"}):
        assert ask(CHAT, {"response_format": plain})[0] == 200
    assert ask(GENERATE, sampling(json_schema="$$ANY$$"))[0] == 200


def test_with_a_repeated_key_the_worker_reads_the_checked_value():
    text = '{"title": "a", "type": "string", "type": "null"}'
    _, _, reached = ask(GENERATE, sampling(json_schema=text))
    assert reached["sampling_params"]["json_schema"] == '{"title":"a","type":"null"}'


MANY = [
    {"stop": ["a"] * 33},
    {"stop": "a" * 257},
    {"stop": [1]},
    {"stop_token_ids": [1] * 129},
    {"logit_bias": {str(one): 1 for one in range(1025)}},
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", MANY)
def test_fields_evaluated_in_every_step_are_limited(path, fields):
    status, _, reached = ask(path, sampling(**fields) if path == GENERATE else fields)
    assert (status, reached) == (400, None)


def test_as_many_stops_as_engines_accept_are_served():
    bias = {str(one): 1 for one in range(1024)}
    fields = {"stop": ["a" * 256] * 32, "stop_token_ids": [1] * 128, "logit_bias": bias}
    status, _, reached = ask(GENERATE, sampling(**fields))
    assert (status, reached["sampling_params"]) == (200, fields)


NUMBERS = [
    *('"temperature": 1e39', '"temperature": 1e400', '"temperature": -1', '"temperature": "1"'),
    *('"top_p": 1e400', '"top_p": 0', '"top_p": 1e-30', '"top_p": 1.01', '"min_p": -0.1'),
    *('"min_p": 1e39', '"frequency_penalty": 1e300', '"frequency_penalty": -2.1'),
    *('"presence_penalty": 1e39', '"presence_penalty": 1e400', '"repetition_penalty": 1e400'),
    *('"logprobs": [1]', '"logprobs": 21', '"top_k": 1e30'),
    *('"logit_bias": {"5": 1e400}', '"stop_token_ids": [1e400]'),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_limited_to_what_float32_and_engines_accept(path, number):
    async def run():
        async with cluster(1) as (under_test, (worker,)):
            body = json.dumps(PATHS[path])[:-1] + ", " + number + "}"
            if path == GENERATE:
                body = '{"text": "a", "sampling_params": {' + number + "}}"
            async with under_test.session.post(under_test.url + path, data=body) as answer:
                return answer.status, worker.seen

    assert asyncio.run(run()) == (400, [])


def test_ordinary_numbers_are_served():
    fields = {"temperature": 0, "top_p": 1, "min_p": 0.05, "top_k": -1, "frequency_penalty": -2}
    fields |= {"presence_penalty": 2.0, "repetition_penalty": 1.1, "temperature": 1.7}
    for path in PATHS:
        if path == MESSAGES:
            fields = {name: fields[name] for name in ("temperature", "top_p", "top_k")}
        assert ask(path, sampling(**fields) if path == GENERATE else fields)[0] == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (GENERATE, {"input_ids": [1] * 8_193, "return_logprob": True, "logprob_start_len": 0}),
        (GENERATE, {"return_logprob": True, "logprob_start_len": -5}),
        (COMPLETIONS, {"prompt": [1] * 8_193, "echo": True, "logprobs": 1}),
    ],
)
def test_log_probabilities_of_a_long_prompt_would_fill_an_engines_memory(path, fields):
    assert ask(path, fields)[0] == 400
    fewer = {
        name: value[1:] if isinstance(value, list) else value for name, value in fields.items()
    }
    if "logprob_start_len" in fewer:
        fewer["logprob_start_len"] = max(-1, fewer["logprob_start_len"])
    assert ask(path, fewer)[0] == 200
