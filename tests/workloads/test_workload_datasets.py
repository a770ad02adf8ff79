"""Test real input: files, hub layouts, token counts, and errors of wrong files."""

import builtins
import errno
import gzip
import json
import os
import socket
import sys
import threading
import time
import types
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairbench.errors import DataError, UsageError
from fairbench.workloads import datasets
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.datasets import load_source
from fairbench.workloads.plan import program_stream
from fairbench.workloads.spec import load_workload
from fairbench.workloads.tokens import ApproximateCounter, load_counter
from tests.workloads.workload_fakes import calls_of, demand_of, shared_data


def text_of(tokens):
    """Return a text that has ``tokens`` tokens by the approximation."""
    return "x" * int(tokens * 4.6)


@pytest.fixture
def write(tmp_path):
    def write(*lines, name="data.jsonl"):
        path = tmp_path / name
        text = "".join(
            (line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines
        )
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)

    return write


def items(source, seed=0):
    """Return one pass over a source, in file order."""
    passed = [source.item(seed, number) for number in range(len(source))]
    return sorted(passed, key=lambda item: int(item.key.rsplit("/", 1)[1]))


class TestLayouts:
    def test_questions_are_read(self, write):
        path = write({"question": text_of(10), "answer": "4"}, {"question": text_of(20)})
        source = load_source("tree-of-thought", path)
        assert [item.text_tokens for item in items(source)] == [10, 20]
        assert [item.key for item in items(source)] == ["data.jsonl/1", "data.jsonl/2"]

    def test_documents_are_read(self, write):
        qa = [{"q": text_of(3), "a": text_of(2)}, {"q": text_of(5), "a": "", "type": None}]
        path = write({"title": "t", "text": text_of(100), "qa": qa}, name="docs.jsonl.gz")
        (item,) = items(load_source("long-qa", path))
        assert (item.text_tokens, item.exchanges) == (100, ((3, 2), (5, 1)))

    def test_hub_loogle_has_a_row_per_question(self, write):
        rows = [
            {"doc_id": "d", "context": text, "question": text_of(n), "answer": text_of(n + 1)}
            for text, n in (("a" * 460, 3), ("b" * 920, 4), ("a" * 460, 5))
        ]
        first, second = items(load_source("long-qa", write(*rows)))
        assert (first.text_tokens, first.exchanges) == (100, ((3, 4), (5, 6)))
        assert (second.text_tokens, second.exchanges) == (200, ((4, 5),))

    @pytest.mark.parametrize("as_text", [True, False])
    def test_the_older_form_of_loogle_on_the_hub_is_read(self, write, as_text):
        pairs = [{"Q": text_of(3), "A": text_of(2), "type": "x"}]
        row = {"input": text_of(50), "title": "t", "qa_pairs": str(pairs) if as_text else pairs}
        (item,) = items(load_source("long-qa", write(row)))
        assert (item.text_tokens, item.exchanges) == (50, ((3, 2),))

    def test_dialogues_are_read(self, write):
        history = [{"user": text_of(3), "bot": text_of(9)}, {"user": text_of(4), "bot": "y"}]
        (item,) = items(load_source("chat", write({"id": 1, "history": history})))
        assert item.exchanges == ((3, 9), (4, 1))

    def test_arena_on_the_hub_is_read(self, write):
        said = [("user", 3), ("assistant", 9), ("user", 4), ("assistant", 8), ("user", 5)]
        row = {"conversation_a": [{"role": r, "content": text_of(n)} for r, n in said]}
        (item,) = items(load_source("chat", write(row)))
        assert item.exchanges == ((3, 9), (4, 8))

    def test_articles_are_joined_to_the_nearest_total(self, write):
        # From each start, there are 1000, 2000, 3000 (nearer to 2677 than 2000), not 4000.
        path = write(*[json.dumps(text_of(1000))] * 3, {"text": text_of(1000)})
        assert [item.text_tokens for item in items(load_source("judge", path))] == [3000] * 4

    def test_joining_continues_at_the_beginning_and_stops_where_it_began(self, write):
        path = write({"text": text_of(100)}, {"text": text_of(2500)}, {"text": text_of(40)})
        # 100+2500+40 is the whole file, and so are 2500+40+100 and 40+100+2500.
        assert [item.text_tokens for item in items(load_source("judge", path))] == [2640] * 3

    def test_a_long_article_stays_alone(self, write):
        path = write({"text": text_of(9000)}, {"text": text_of(10)})
        assert items(load_source("judge", path))[0].text_tokens == 9000

    def test_a_byte_order_mark_is_ignored(self, write):
        path = write('\ufeff{"question": "a"}')
        assert len(load_source("tree-of-thought", path)) == 1

    def test_blank_lines_are_not_records(self, write):
        assert len(load_source("tree-of-thought", write({"question": "a"}, "", "  "))) == 1


class TestOrder:
    @pytest.fixture
    def source(self, write):
        return load_source("tree-of-thought", write(*[{"question": f"q{n}"} for n in range(20)]))

    def test_each_pass_yields_every_item_once(self, source):
        for turn in range(3):
            keys = [source.item(4, 20 * turn + n).key.split("#")[0] for n in range(20)]
            assert len(set(keys)) == 20
            assert keys != sorted(keys)

    def test_passes_and_seeds_are_shuffled_differently(self, source):
        def order(seed, turn):
            return [source.item(seed, 20 * turn + n).key.split("#")[0] for n in range(20)]

        assert order(4, 0) != order(4, 1)
        assert order(4, 0) != order(5, 0)
        assert order(4, 0) == order(4, 0)

    def test_later_passes_are_fresh_copies(self, source):
        keys = [source.item(4, n).key for n in range(60)]
        assert len(set(keys)) == 60
        assert [key.endswith("#2") for key in keys] == [False] * 20 + [True] * 20 + [False] * 20


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("kind", "lines", "message"),
        [
            ("tree-of-thought", [{"question": "a"}, "{"], r"data\.jsonl, line 2: not JSON"),
            ("tree-of-thought", [{"question": "a"}, {"q": 1}], r"line 2: missing field 'question'"),
            ("tree-of-thought", [{"question": 5}], r"line 1: field 'question': must be a string"),
            ("tree-of-thought", [{"question": ""}], r"line 1: field 'question': must not be empty"),
            ("tree-of-thought", [[1]], r"line 1: the record must be a JSON object or a string"),
            (
                "tree-of-thought",
                [{"x": 1}],
                r"missing field 'question': programs of kind tree-of-thought read",
            ),
            (
                "long-qa",
                [{"text": "a", "qs": []}],
                r"the records \(.*text\} or a string\) are for programs of kind judge",
            ),
            ("long-qa", [{"title": "a", "qa": []}], r"line 1: missing field 'text'"),
            ("long-qa", [{"text": "a", "qa": []}], r"line 1: field 'qa': must not be empty"),
            ("long-qa", [{"text": "a", "qa": [{"q": "b"}]}], r"missing field 'qa\[0\]\.a'"),
            ("chat", ["[" * 99_999], r"data\.jsonl, line 1: nested too deeply"),
            ("long-qa", [{"input": "a", "qa_pairs": "[" * 99_999}], r"must be a list of objects"),
            ("long-qa", [{"input": "a", "qa_pairs": "none("}], r"'qa_pairs': must be a list"),
            ("chat", [{"history": [{"user": "b"}]}], r"missing field 'history\[0\]\.bot'"),
            ("chat", [{"history": "b"}], r"'history': must be a list of objects"),
            (
                "chat",
                [{"conversation_a": [{"role": "user", "content": "b"}]}],
                "must hold a user message that is followed by an",
            ),
            (
                "chat",
                [{"question": "a"}],
                r"for programs of kind tree-of-thought.*runs kind chat.*history",
            ),
            ("tree-of-thought", [{"text": "a", "qa": [1]}], r"for programs of kind long-qa"),
        ],
    )
    def test_errors_name_file_line_and_field(self, write, kind, lines, message):
        with pytest.raises(DataError, match=message) as raised:
            load_source(kind, write(*lines))
        assert "\n" not in str(raised.value)
        assert "data.jsonl" in str(raised.value)

    def test_an_empty_file_is_refused(self, write):
        with pytest.raises(DataError, match=r"data\.jsonl: holds no records"):
            load_source("chat", write())

    def test_a_missing_file_a_folder_and_a_wrong_suffix_are_refused(self, tmp_path):
        with pytest.raises(
            DataError, match=r"^dataset .*absent\.jsonl: cannot be read: No such file"
        ):
            load_source("chat", str(tmp_path / "absent.jsonl"))
        (tmp_path / "folder.jsonl").mkdir()
        with pytest.raises(DataError, match=r"^dataset .*folder\.jsonl: cannot be read: "):
            load_source("chat", str(tmp_path / "folder.jsonl"))
        with pytest.raises(DataError, match=r"must end in \.jsonl, \.csv, \.json \("):
            load_source("chat", str(tmp_path / "data.txt"))

    def test_files_that_are_not_gzip_cut_off_or_not_text_are_refused(self, write, tmp_path):
        bad = tmp_path / "bad.jsonl.gz"
        bad.write_bytes(b"not gzip at all")
        with pytest.raises(DataError, match=r"^dataset .*bad\.jsonl\.gz: cannot be read: "):
            load_source("chat", str(bad))
        bad.write_bytes(gzip.compress(b'{"question": "abcdefgh"}\n' * 99)[:-20])
        with pytest.raises(DataError, match="damaged gzip"):
            load_source("tree-of-thought", str(bad))
        latin = tmp_path / "latin.jsonl"
        latin.write_bytes(b'{"question": "\xe9"}\n')
        with pytest.raises(DataError, match="not UTF-8"):
            load_source("tree-of-thought", str(latin))


REACHES = datasets.reaches_hub
# The columns are those of the data sets' cards. Texts of known length replace long texts.
ROWS_OF = {
    "openai/gsm8k": {"question": text_of(46), "answer": "48 / 2 = <<48/2=24>>24 #### 24"},
    "bigai-nlco/LooGLE": {
        "doc_id": "0", "task": "longdep_qa", "title": "Picardy third", "context": text_of(900),
        "question": text_of(12), "answer": text_of(5), "evidence": [text_of(40)],
    },
    "lmsys/chatbot_arena_conversations": {
        "question_id": "58210e39b3fd4441a2bd4a518bb44c2d", "model_a": "chatglm-6b",
        "model_b": "koala-13b", "winner": "model_b", "judge": "arena_user_973",
        "conversation_a": [
            {"content": text_of(9), "role": "user"}, {"content": text_of(70), "role": "assistant"},
        ],
        "conversation_b": [
            {"content": text_of(9), "role": "user"}, {"content": text_of(80), "role": "assistant"},
        ],
        "turn": 1, "anony": True, "language": "English", "tstamp": 1682351591.1322,
        "openai_moderation": {"flagged": False}, "toxic_chat_tag": {"flagged": False},
    },
}  # fmt: skip
HUB_ROWS = [
    ("tree-of-thought", "openai/gsm8k", (46, ())),
    ("long-qa", "bigai-nlco/LooGLE", (900, ((12, 5),))),
    ("chat", "lmsys/chatbot_arena_conversations", (0, ((9, 70),))),
]


class TestHub:
    """The loader with a stand-in for the ``datasets`` package."""

    @pytest.fixture
    def hub(self, monkeypatch):
        asked = []

        def install(rows):
            def load_dataset(name, configuration, *, split):
                asked.append((name, configuration, split))
                if isinstance(rows, Exception):
                    raise rows
                return rows

            module = types.ModuleType("datasets")
            module.load_dataset = load_dataset
            monkeypatch.setitem(sys.modules, "datasets", module)
            monkeypatch.setattr(datasets, "reaches_hub", lambda: True)
            return asked

        return install

    @pytest.fixture
    def no_copies(self, monkeypatch, tmp_path):
        for name in (
            "HF_HUB_CACHE",
            "HF_DATASETS_CACHE",
            "HTTPS_PROXY",
            "https_proxy",
            "ALL_PROXY",
        ):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        return tmp_path

    def test_hub_rows_are_read_like_local_records(self, hub):
        asked = hub([{"question": text_of(7), "answer": "x"}])
        (item,) = items(load_source("tree-of-thought", "hf:openai/gsm8k"))
        assert (item.key, item.text_tokens) == ("hf:openai/gsm8k/1", 7)
        assert asked == [("openai/gsm8k", "main", "train")]

    def test_a_wrong_kind_and_a_wrong_row_are_refused(self, hub):
        hub([{"question": "a"}, {"answer": "b"}])
        with pytest.raises(
            DataError, match=r"hf:openai/gsm8k, row 1: .*for programs of kind tree-of-thought"
        ):
            load_source("chat", "hf:openai/gsm8k")
        with pytest.raises(DataError, match=r"row 2: missing field 'question'"):
            load_source("tree-of-thought", "hf:openai/gsm8k")

    def test_an_error_without_network_is_one_line(self, hub):
        hub(ConnectionError("no route\nmore"))
        with pytest.raises(
            UsageError, match=r"hf:openai/gsm8k: cannot be loaded: no route\. Check"
        ) as raised:
            load_source("tree-of-thought", "hf:openai/gsm8k")
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("silent", [True, False], ids=["no answer", "refused"])
    def test_without_a_way_to_the_hub_the_loader_is_not_asked(
        self, hub, no_copies, monkeypatch, silent
    ):
        asked = hub([])
        monkeypatch.setattr(datasets, "reaches_hub", REACHES)
        monkeypatch.setattr(datasets, "HUB_PATIENCE_S", 0.02)
        waits = threading.Event()

        def connect(address, timeout):
            assert address == ("huggingface.co", 443)
            if silent:
                waits.wait(5)
            raise OSError("refused")

        monkeypatch.setattr(datasets.socket, "create_connection", connect)
        with pytest.raises(UsageError, match=r"gsm8k: cannot be loaded: huggingface\.co did not"):
            load_source("tree-of-thought", "hf:openai/gsm8k")
        waits.set()
        assert asked == []

    @pytest.mark.slow
    def test_a_silent_hub_costs_less_than_three_seconds(self, hub, no_copies, monkeypatch):
        """A socket whose queue of new connections is full never answers."""
        asked = hub([])
        monkeypatch.setattr(datasets, "reaches_hub", REACHES)
        with ExitStack() as open_sockets:
            server = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(4):
                client = open_sockets.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(server.getsockname())
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
            begun_s = time.monotonic()
            with pytest.raises(UsageError, match=r"127\.0\.0\.1 did not answer") as raised:
                load_source("tree-of-thought", "hf:openai/gsm8k")
            assert 1 < time.monotonic() - begun_s < 3
        assert (asked, "\n" in str(raised.value)) == ([], False)

    @pytest.mark.parametrize("folder", ["hub/datasets--openai--gsm8k", "datasets/openai___gsm8k"])
    def test_a_copy_is_read_without_a_way_to_the_hub(self, hub, no_copies, monkeypatch, folder):
        """A folder without files, as an interrupted download leaves, is no copy."""
        asked = hub([{"question": text_of(7)}])
        monkeypatch.setattr(datasets, "reaches_hub", lambda: False)
        monkeypatch.setenv(datasets.HUB_OFFLINE, "0")
        (no_copies / folder / "main").mkdir(parents=True)
        with pytest.raises(UsageError, match="there is no copy on this machine"):
            load_source("tree-of-thought", "hf:openai/gsm8k")
        assert (asked, os.environ[datasets.HUB_OFFLINE]) == ([], "0")
        (no_copies / folder / "main" / "train.arrow").touch()
        assert len(load_source("tree-of-thought", "hf:openai/gsm8k")) == 1
        assert os.environ[datasets.HUB_OFFLINE] == "1"

    def test_a_mirror_and_a_proxy_are_respected(self, no_copies, monkeypatch):
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        assert (datasets.hub_host(), datasets.reaches_hub()) == ("127.0.0.1", False)
        monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
        assert datasets.reaches_hub()

    @pytest.mark.parametrize(("kind", "name", "expected"), HUB_ROWS)
    def test_rows_with_all_columns_of_the_hub_are_read(self, hub, kind, name, expected):
        hub([ROWS_OF[name]])
        (item,) = items(load_source(kind, f"hf:{name}"))
        assert (item.text_tokens, item.exchanges) == expected

    def test_an_unknown_dataset_is_refused(self):
        with pytest.raises(UsageError, match=r"hub dataset 'openai/gsm8'.*mean 'openai/gsm8k'"):
            load_source("tree-of-thought", "hf:openai/gsm8")

    def test_a_missing_package_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        monkeypatch.setattr(datasets, "reaches_hub", lambda: True)
        with pytest.raises(UsageError, match=r"in a clone of fairbench, pip install \"\.\[hub\]\""):
            load_source("tree-of-thought", "hf:openai/gsm8k")


class TestTokens:
    @pytest.mark.parametrize(
        ("characters", "tokens"), [(0, 1), (1, 1), (46, 10), (47, 11), (4600, 1000)]
    )
    def test_the_approximation_rounds_up(self, characters, tokens):
        assert ApproximateCounter().count("x" * characters) == tokens

    def test_the_source_states_its_token_count(self, write):
        source = load_source("tree-of-thought", write({"question": "a"}))
        assert source.token_count_method == "approximated: 4.6 characters a token"

    def test_missing_and_wrong_tokenizer_files_are_refused(self, tmp_path):
        with pytest.raises(UsageError, match="no such file"):
            load_counter(str(tmp_path / "absent.json"))
        with pytest.raises(UsageError, match="no such file"):
            load_counter(str(tmp_path))
        bad = tmp_path / "tokenizer.json"
        bad.write_bytes(b"\xff")
        with pytest.raises(DataError, match="is not UTF-8 text; save it as UTF-8"):
            load_counter(str(tmp_path))
        bad.write_text("{}")
        pytest.importorskip("tokenizers")
        with pytest.raises(DataError, match=r"not a tokenizer\.json") as raised:
            load_counter(str(tmp_path))
        assert "\n" not in str(raised.value)

    def test_a_missing_package_is_named(self, tmp_path, monkeypatch):
        path = tmp_path / "tokenizer.json"
        path.write_text("{}")
        real = builtins.__import__

        def refuse(name, *arguments, **keywords):
            if name == "tokenizers":
                raise ImportError(name)
            return real(name, *arguments, **keywords)

        monkeypatch.setattr(builtins, "__import__", refuse)
        with pytest.raises(
            UsageError, match=r"a clone of fairbench, pip install \"\.\[tokenizers\]\""
        ):
            load_counter(str(path))

    def test_an_unreadable_file_gets_a_reason(self, tmp_path, monkeypatch):
        def denied(*arguments, **keywords):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        with pytest.raises(DataError, match=r"a: cannot be read: File name too long$"):
            load_counter("a" * 300)
        (tmp_path / "locked.json").write_text("{}")
        monkeypatch.setattr(Path, "open", denied)
        monkeypatch.setattr("io.open", denied)
        with pytest.raises(DataError, match=r"locked\.json: cannot be read: Permission denied$"):
            load_counter(str(tmp_path / "locked.json"))

    def test_padding_and_truncation_of_a_tokenizer_do_not_count(self, tmp_path):
        tokenizers = pytest.importorskip("tokenizers")
        model = tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?")
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.enable_truncation(max_length=1)
        tokenizer.enable_padding(length=50)
        tokenizer.save(str(tmp_path / "words.json"))
        assert load_counter(str(tmp_path / "words.json")).count("a a a") == 3

    def test_a_small_tokenizer_counts_tokens(self, tmp_path, write):
        tokenizers = pytest.importorskip("tokenizers")
        model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.save(str(tmp_path / "words.json"))
        path = write({"question": "a b a b something"})
        source = load_source("tree-of-thought", path, str(tmp_path / "words.json"))
        assert source.item(0, 0).text_tokens == 5
        assert source.token_count_method == "tokenizer file words.json"


class TestSharedData:
    """Tests of the real files, if they are beside the checkout."""

    @pytest.mark.parametrize(
        ("workload", "name", "count", "mean_tokens"),
        [
            ("tot", "gsm8k_train.jsonl.gz", 7473, (48, 55)),
            ("long-qa", "loogle_wiki9.jsonl.gz", 9, (17_000, 21_000)),
            ("long-qa", "qmsum_val.jsonl.gz", 35, (11_000, 13_500)),
            ("judge", "sglang_judge_articles.jsonl.gz", 25, (2_400, 3_000)),
            ("chat", "mtbench101.jsonl.gz", 1388, (0, 0)),
        ],
    )
    def test_every_record_becomes_a_program(self, workload, name, count, mean_tokens):
        spec = load_workload(workload)
        source = load_source(spec.program, shared_data(name))
        assert len(source) == count
        lengths = [item.text_tokens for item in items(source)]
        assert mean_tokens[0] <= sum(lengths) / count <= mean_tokens[1]
        contents = set()
        for plan in plan_clients(spec, "none", num_programs=6):
            for _, program in program_stream(plan, seed=0, source=source):
                calls = calls_of(program)
                assert program.demand == demand_of(calls)
                contents.add(next(s.key for s in calls[0].prompt if name in s.key))
        assert len(contents) == 6 * spec.clients

    def test_the_total_number_of_questions(self):
        source = load_source("long-qa", shared_data("loogle_wiki9.jsonl.gz"))
        assert sum(len(item.exchanges) for item in items(source)) == 123
        source = load_source("chat", shared_data("mtbench101.jsonl.gz"))
        assert sum(len(item.exchanges) for item in items(source)) == 4208

    def test_a_real_file_for_another_workload_is_refused(self):
        with pytest.raises(
            DataError, match=r"line 1: .*for programs of kind long-qa.*runs kind judge"
        ):
            load_source("judge", shared_data("loogle_wiki9.jsonl.gz"))

    def test_a_real_tokenizer_is_read(self):
        pytest.importorskip("tokenizers")
        tokenizer = shared_data("qwen3_tokenizer.json")
        source = load_source("judge", shared_data("sglang_judge_articles.jsonl.gz"), tokenizer)
        lengths = [item.text_tokens for item in items(source)]
        assert 2_400 <= sum(lengths) / len(lengths) <= 3_000
        assert source.token_count_method == "tokenizer file qwen3_tokenizer.json"
