"""What is recognised as a secret, and what must stay readable."""

from __future__ import annotations

import random
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from assay.values import secrets
from assay.values.run import Command, RunSpec

SETTINGS = Path(__file__).parents[2] / "docs/reference/settings.md"


SECRET = """
token HF_TOKEN hfToken api-key apiKey OPENAI_API_KEY AWS_SECRET_ACCESS_KEY db.password PGPASSWD ssh_passphrase
client_secret auth_token SLACK_WEBHOOK_URL access_token MY_SERVICE_TOKEN wandb_key openai-key
"""
OPEN = """
max_tokens num_tokens tokenizer TOKENIZERS_PARALLELISM eos_token pad_token_id token_dim n_tokens_per_batch key_dim
num_key_value_heads keyword author PWD password_file image_token sort_key lr monkey class_token authors token_type
"""


@pytest.mark.parametrize("name", (SECRET + OPEN).split())
def test_names_of_secrets(name: str) -> None:
    assert secrets.is_secret_name(name) is (name in SECRET.split())


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        *(("token", 5, False), ("token", "5", False), ("password", 5, True), ("token", True, False)),
        *(
            ("use_auth_token", "true", False),
            ("token", "", False),
            ("token", secrets.HIDDEN, False),
            ("token", None, False),
        ),
    ],
)
def test_numbers_and_switches_are_no_secrets(name: str, value: object, secret: bool) -> None:
    assert secrets.is_secret(name, value) is secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("t --token abc --lr 0.1", "t --token *** --lr 0.1"),
        ("t --password='a b c' x", "t --password='***' x"),
        ('t --api-key "a b"', 't --api-key "***"'),
        ("FOO_TOKEN=xyz cmd", "FOO_TOKEN=*** cmd"),
        ("cmd; export A_SECRET='x y'; go", "cmd; export A_SECRET='***'; go"),
        ("bash -c 'x --token abc'", "bash -c 'x --token ***'"),
        ("curl -H 'Authorization: Bearer abc.def' u", "curl -H 'Authorization: Bearer ***' u"),
        ("curl -u bob:pw h", "curl -u bob:*** h"),
        ("git clone https://bob:pw@host/x", "git clone https://bob:***@host/x"),
        ('curl -d \'{"password": "x"}\' u', 'curl -d \'{"password": "***"}\' u'),
        ("t hf_abcDEF0123456789 ghp_0123456789abcd", "t *** ***"),
        ("t sk-proj-abc123abc123abc1 AKIAABCDEFGHIJKLMNOP xoxb-12345-abcde", "t *** *** ***"),
        ("t glpat-abcdefghij1234 eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", "t *** ***"),
        ("python t.py +db.password=foo", "python t.py +db.password=***"),
    ],
)
def test_secrets_in_command_lines(text: str, shown: str) -> None:
    assert secrets.hide_text(text) == shown
    assert secrets.hide_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        'cmd --token $HF_TOKEN --api-key "${KEY}" --password $(cat file)',
        "t --max-tokens 512 --eos-token '</s>' --tokenizer gpt2 --token-file /a/b",
        "python -u s3://b --x a:b",
        "python hf_transformers.py --model sk-learn-intelex --task token classification",
        "curl https://host/path?key=abc",
        "--token --verbose",
    ],
)
def test_command_lines_without_secrets_stay_as_they_are(text: str) -> None:
    assert secrets.hide_text(text) == text


def test_words_of_a_command_line() -> None:
    words = ("assay", "run", "--token", "abc", "--env", "X_TOKEN=foo", "-n")
    assert secrets.hide_arguments(words) == ("assay", "run", "--token", secrets.HIDDEN, "--env", "X_TOKEN=***", "-n")


def test_a_diff_shows_programs_and_no_secrets() -> None:
    diff = (
        "diff --git a/sub/.env b/sub/.env\n+A=1\n"
        "diff --git a/.aws/x b/.aws/x\n+A=2\n"
        "diff --git a/conf.yml b/conf.yml\n+  hf_token: plain1\n-password: a#b c # old\n+lr: 3\n+env: {A_TOKEN: q w, lr: 2}\n"
        'diff --git a/t.py b/t.py\n+token = next(it)\n+token = "literal"\n+x = known123\n'
    )
    shown = (
        "diff --git a/sub/.env b/sub/.env\n[left out: the file's name looks like a secret]\n"
        "diff --git a/.aws/x b/.aws/x\n[left out: the file's name looks like a secret]\n"
        "diff --git a/conf.yml b/conf.yml\n+  hf_token: ***\n-password: *** # old\n+lr: 3\n+env: {A_TOKEN: ***, lr: 2}\n"
        'diff --git a/t.py b/t.py\n+token = next(it)\n+token = "***"\n+x = ***\n'
    )
    assert secrets.hide_diff(diff, known=["known123"]) == shown


def test_secrets_inside_of_parameters_are_hidden_by_their_names() -> None:
    params = {"token": "x", "a": {"api_key": "x", "b": [{"password": "x"}]}, "n": 3}
    assert secrets.hide_named(params) == {
        "token": secrets.HIDDEN,
        "a": {"api_key": secrets.HIDDEN, "b": [{"password": secrets.HIDDEN}]},
        "n": 3,
    }


def test_a_hidden_run_keeps_its_id_and_the_real_values_apart() -> None:
    spec = RunSpec(
        "id", "n", {"token": "abcdefgh", "x": "--password pw1"}, (Command("a", "go abcdefgh"), Command("b", "x"))
    )
    hidden = secrets.hide_spec(spec)
    assert (hidden.id, dict(hidden.params)) == ("id", {"token": secrets.HIDDEN, "x": "--password ***"})
    assert [command.text for command in hidden.commands] == ["go ***", "x"]
    assert hidden.private is not None
    assert dict(hidden.private.commands) == {"a": "go abcdefgh"}
    assert "abcdefgh" not in repr(hidden)
    assert secrets.hide_spec(hidden) is hidden
    plain = RunSpec("id", "n", {"lr": 1}, (Command("a", "go"),))
    assert secrets.hide_spec(plain) is plain


def test_of_several_patterns_the_last_one_counts() -> None:
    rules = secrets.SecretRules(names=("my-*", "!MY_OPEN", "!HF_TOKEN"))
    names = ("my_x", "my_open", "HF_TOKEN", "api_key")
    assert [name for name in names if secrets.is_secret_name(name, rules)] == ["my_x", "api_key"]
    fits = secrets.build_file_matcher((*secrets.SECRET_FILES, "!conf/a.key", "*.lic"))
    cases = [("a.key", "conf/a.key"), ("a.key", "a.key"), ("X.LIC", "d/X.LIC"), ("credentials.py", "credentials.py")]
    assert [fits(name, path, False) for name, path in cases] == [False, True, True, False]


@pytest.mark.parametrize(
    "pattern", [*secrets.SECRET_FILES, *(name for name in secrets.SECRET_NAMES if not name.startswith("!"))]
)
def test_every_pattern_is_documented(pattern: str) -> None:
    assert f"`{pattern}`" in SETTINGS.read_text(encoding="utf-8")


def test_names_match_as_fnmatch_matches_them() -> None:
    draw = random.Random(1)
    for _ in range(3000):
        text = "".join(draw.choices("AB_\n", k=draw.randrange(6)))
        pattern = "".join(draw.choices("AB_**?[]", k=draw.randrange(6)))
        assert secrets.matches(text, pattern) == fnmatchcase(text, pattern), (text, pattern)
