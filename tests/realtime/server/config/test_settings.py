"""Options from flags, environment and file, and the one-line errors that name a wrong one."""

import argparse
from pathlib import Path

import pytest

from continuo.realtime.errors import SetupError
from continuo.realtime.server.config.options import (
    COMMAND_GROUPS,
    OPTIONS,
    OptionValue,
    add_options,
    merge_sources,
)
from continuo.realtime.server.config.settings import (
    make_engine_settings,
    make_gateway_settings,
    make_serve_settings,
)


def parse(*argv: str, command: str = "serve") -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_options(parser, command)
    return vars(parser.parse_args(argv))


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "continuo.toml"
    file.write_text('port = 1\nhost = "127.0.0.2"\nmax-num-seqs = 3\nlog_level = "info"\n')
    environ = {"CONTINUO_PORT": "2", "CONTINUO_HOST": "127.0.0.3", "CONTINUO_CONFIG": str(file)}
    settings = make_serve_settings(merge_sources(parse("--port", "4"), environ))
    assert (settings.port, settings.host) == (4, "127.0.0.3")
    assert (settings.engine.max_num_seqs, settings.log_level) == (3, "info")
    assert make_serve_settings(merge_sources(parse("--config", str(file)), {})).port == 1


def test_defaults_are_the_bundled_model_on_loopback() -> None:
    settings = make_serve_settings(merge_sources(parse(), {}))
    assert (settings.engine.model, settings.host, settings.port) == ("demo", "127.0.0.1", 8000)
    assert settings.is_loopback


def test_every_kind_of_option_is_read_from_every_source(tmp_path: Path) -> None:
    file = tmp_path / "continuo.toml"
    file.write_text('api-key = ["a", "b"]\nno-auth = true\ntemperature = 1\nmodel = "m"\n')
    environ = {
        "CONTINUO_API_KEY": "a, b",
        "CONTINUO_NO_AUTH": "true",
        "CONTINUO_TEMPERATURE": "1",
        "CONTINUO_MODEL": "m",
    }
    flags = ("--api-key", "a", "--api-key", "b", "--no-auth", "--temperature", "1", "--model", "m")
    sources = [
        merge_sources(parse(*flags), {}),
        merge_sources(parse(), environ),
        merge_sources(parse("--config", str(file)), {}),
    ]
    assert sources[0] == sources[1] == sources[2]
    assert make_serve_settings(sources[0]).tenants == {"a": "default", "b": "default"}


def test_every_engine_option_reaches_the_engine() -> None:
    values = {"integer": "7", "number": "0.5", "text": "m"}
    for option in OPTIONS:
        if option.group not in ("model", "engine") or option.kind == "list":
            continue
        text = option.choices[-1] if option.choices else values[option.kind]
        engine = make_serve_settings(merge_sources(parse(f"--{option.name}", text), {})).engine
        assert str(getattr(engine, option.key)) == text, option.name


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("prot = 1", "unknown option 'prot'"),
        ('port = "x"', "port.*'x' is not a valid integer"),
        ("port = true", "True is not a valid integer"),
        ('dtype = "int4"', "'int4' is not one of auto, float32"),
        ("port = ", "not TOML"),
        ("api-key = [1]", "is not a valid list"),
    ],
)
def test_error_in_the_config_file_names_file_and_option(
    tmp_path: Path, file: str, message: str
) -> None:
    path = tmp_path / "continuo.toml"
    path.write_text(file)
    with pytest.raises(SetupError, match=message) as caught:
        merge_sources(parse("--config", str(path)), {})
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value).removeprefix(str(path)) or "TOML" in message


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"CONTINUO_PORT": "many"}, "CONTINUO_PORT: 'many' is not a valid integer"),
        ({"CONTINUO_NO_AUTH": "maybe"}, "CONTINUO_NO_AUTH: 'maybe' is neither"),
        ({"CONTINUO_DTYPE": "int4"}, "CONTINUO_DTYPE: 'int4' is not one of"),
        ({"CONTINUO_CONFIG": "/nowhere.toml"}, "/nowhere.toml: cannot be read"),
        ({"CONTINUO_PORT": "70000"}, "--port 70000: expected 0 to 65,535"),
        ({"CONTINUO_KV_OFFLOADING_SIZE": "-1"}, "--kv-offloading-size -1.0: expected 0 or more"),
        ({"CONTINUO_KV_OFFLOADING_SIZE": "nan"}, "--kv-offloading-size nan: expected 0 or more"),
        ({"CONTINUO_KV_OFFLOADING_SIZE": "inf"}, "--kv-offloading-size inf: expected 0 or more"),
        ({"CONTINUO_TEMPERATURE": "3"}, "--temperature 3.0: expected 0 to 2"),
        ({"CONTINUO_ALLOWED_ORIGINS": "*"}, r"--allowed-origins \*: expected scheme"),
        ({"CONTINUO_ALLOWED_ORIGINS": "https://a.org/x"}, "expected scheme"),
    ],
)
def test_error_in_an_option_names_option_and_value(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        make_serve_settings(merge_sources(parse(), environ))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_host_beyond_loopback_requires_a_key_or_no_auth(host: str) -> None:
    with pytest.raises(SetupError, match=r"--api-key.*--no-auth"):
        make_serve_settings({"host": host})
    assert make_serve_settings({"host": host, "api_key": ["k"]}).host == host
    assert make_serve_settings({"host": host, "no_auth": True}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_host_requires_no_key(host: str) -> None:
    assert make_serve_settings({"host": host}).is_loopback


def test_help_names_every_option_and_its_variable() -> None:
    text = ""
    for command in COMMAND_GROUPS:
        parser = argparse.ArgumentParser()
        add_options(parser, command)
        text += " ".join(parser.format_help().split())
    for option in OPTIONS:
        assert f"--{option.name}" in text
        assert f"[{option.environment_variable}]" in text


# ---- separate gateways and engines --------------------------------------------------------------


def test_gateway_reads_its_engines_and_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    environ = {
        "CONTINUO_ENGINE": "engine-1:8100, [::1]:8101",
        "CONTINUO_SECRET_FILE": str(secret),
        "CONTINUO_MODEL": "options of others do not matter",
    }
    settings = make_gateway_settings(merge_sources(parse(command="gateway"), environ))
    assert settings.engines == (("engine-1", 8100), ("::1", 8101))
    assert settings.secret == b"0123456789abcdef"
    assert settings.drain_grace_s == 20
    assert make_gateway_settings({"store": "redis://r:6379/0"}).engines == ()


def test_engine_reads_its_listen_address() -> None:
    settings = make_engine_settings(
        merge_sources(parse("--listen", "127.0.0.1:0", command="engine"), {})
    )
    assert settings.listen == ("127.0.0.1", 0)
    assert make_engine_settings({}).listen == ("127.0.0.1", 8100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a gateway needs engines"),
        ({"store": "sqlite:///x"}, "a gateway needs engines"),
        ({"engine": ["nowhere"]}, "--engine nowhere: expected HOST:PORT"),
        ({"engine": ["a:70000"]}, "--engine a:70000: expected HOST:PORT"),
        ({"engine": ["a:1"], "secret_file": "/none"}, "--secret-file /none: cannot be read"),
        ({"engine": ["a:1"], "drain_grace_s": -1.0}, "--drain-grace-s -1.0: expected 0 to 3,600"),
    ],
)
def test_gateway_refuses_invalid_options(options: dict[str, OptionValue], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        make_gateway_settings(options)


def test_engine_refuses_invalid_options(tmp_path: Path) -> None:
    short, secret = tmp_path / "short", tmp_path / "secret"
    short.write_text("0123456789\n")
    secret.write_text("0123456789abcdef\n")
    known: dict[str, OptionValue] = {"secret_file": str(secret)}
    wrong: list[tuple[dict[str, OptionValue], str]] = [
        ({"listen": "0.0.0.0:1"}, "accepts any gateway: set --secret-file"),
        ({"secret_file": str(short)}, "10 bytes; it must have 16"),
        ({"store": "sqlite:///x"}, "announced only in a Redis"),
        ({**known, "listen": "0.0.0.0:1", "store": "redis://r"}, "set --advertise"),
    ]
    for options, message in wrong:
        with pytest.raises(SetupError, match=message):
            make_engine_settings(options)
    assert make_engine_settings({**known, "listen": "0.0.0.0:1"}).listen.port == 1
