"""Options from flags, environment and file, and the one-line errors that name a wrong one."""

import argparse
import json
from pathlib import Path

import pytest

from continuo.engine import SpeculativeConfig
from continuo.realtime.errors import SetupError
from continuo.realtime.server.config.options import (
    COMMAND_GROUPS,
    OPTIONS,
    OptionValue,
    add_options,
    merge_sources,
)
from continuo.realtime.server.config.settings import (
    GatewaySettings,
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


def test_server_in_place_of_the_engine_is_chosen_by_its_url() -> None:
    url, key = "http://vllm:8000", ("--engine-api-key-file", "key")
    for make, command in ((make_serve_settings, "serve"), (make_engine_settings, "engine")):
        options = merge_sources(parse("--engine-url", url, *key, command=command), {})
        assert make(options).engine.engine_url == url
        assert make(options).engine.engine_api_key_file == "key"
    settings = make_serve_settings(merge_sources(parse(), {"CONTINUO_ENGINE_URL": url}))
    assert settings.engine.engine_url == url


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--engine-api-key-file", "key"), "no effect without --engine-url"),
        (("--engine-url", "vllm:8000"), "--engine-url vllm:8000: expected a URL"),
        *(
            (("--engine-url", "http://a", *flag), f"{flag[0]} is an option of our own engine")
            for flag in (
                ("--dtype", "bfloat16"),
                ("--quantization", "int8"),
                ("--device", "cpu"),
                ("--block-size", "16"),
                ("--num-gpu-blocks-override", "9"),
                ("--kv-cache-memory-bytes", "2GiB"),
                ("--kv-offloading-size", "1"),
                ("--max-num-seqs", "8"),
                ("--max-group-share", "0.5"),
                ("--max-num-batched-tokens", "64"),
                ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
                ("--threads", "2"),
                ("--standby-engine",),
            )
        ),
    ],
)
def test_option_that_another_server_does_not_take_is_refused_by_name(
    flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        make_serve_settings(merge_sources(parse(*flags), {}))


def test_demo_is_off_by_default_and_refused_where_strangers_could_use_it() -> None:
    def settings_of(*flags: str) -> GatewaySettings:
        return make_serve_settings(merge_sources(parse(*flags), {}))

    assert not settings_of().demo
    assert settings_of("--demo").demo
    assert settings_of("--demo", "--host", "0.0.0.0", "--api-key", "k").demo
    for flags, message in (
        (("--host", "0.0.0.0", "--no-auth"), r"--demo .* --host 0\.0\.0\.0 .* set --api-key"),
        (("--no-web",), "--demo has no effect with --no-web"),
    ):
        with pytest.raises(SetupError, match=message):
            settings_of("--demo", *flags)
    with pytest.raises(SystemExit):
        parse("--demo", command="gateway")


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
    values = {"integer": "7", "bytes": "7", "number": "0.5", "text": "m", "switch": "True"}
    for option in OPTIONS:
        if option.group not in ("model", "engine") or option.kind == "list":
            continue
        if option.name in ("speculative-config", "engine-url", "engine-api-key-file"):
            continue  # not any text: see their own tests
        is_switch = option.kind == "switch"
        text = option.choices[-1] if option.choices else values.get(option.kind, "True")
        flags = [f"--{option.name}"] if is_switch else [f"--{option.name}", text]
        engine = make_serve_settings(merge_sources(parse(*flags), {})).engine
        assert str(getattr(engine, option.key)) == text, option.name


@pytest.mark.parametrize("size", ["2GiB", "2048 MiB", "2147483648"])
def test_memory_of_the_kv_pool_is_read_with_a_unit_from_every_source(
    tmp_path: Path, size: str
) -> None:
    file = tmp_path / "continuo.toml"
    file.write_text(f'kv-cache-memory-bytes = "{size}"')
    for sources in (
        merge_sources(parse("--kv-cache-memory-bytes", size), {}),
        merge_sources(parse(), {"CONTINUO_KV_CACHE_MEMORY_BYTES": size}),
        merge_sources(parse("--config", str(file)), {}),
    ):
        assert make_serve_settings(sources).engine.kv_cache_memory_bytes == 2 << 30
    file.write_text("kv-cache-memory-bytes = 2147483648")
    sources = merge_sources(parse("--config", str(file)), {})
    assert make_serve_settings(sources).engine.kv_cache_memory_bytes == 2 << 30


def test_memory_of_the_kv_pool_without_a_known_unit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "'2GB' is no number of bytes, such as 2GiB, 512MiB or 1000000000"
    with pytest.raises(SystemExit):
        parse("--kv-cache-memory-bytes", "2GB")
    assert f"--kv-cache-memory-bytes: {message}" in capsys.readouterr().err
    with pytest.raises(SetupError, match=f"CONTINUO_KV_CACHE_MEMORY_BYTES: {message}"):
        merge_sources(parse(), {"CONTINUO_KV_CACHE_MEMORY_BYTES": "2GB"})
    file = tmp_path / "continuo.toml"
    for value, problem in (('"2GB"', message), ("true", "'True' is no number of bytes")):
        file.write_text(f"kv-cache-memory-bytes = {value}")
        with pytest.raises(SetupError, match=f"kv-cache-memory-bytes: {problem}"):
            merge_sources(parse("--config", str(file)), {})


def test_speculative_config_is_json_with_the_names_of_vllm() -> None:
    def read(text: str) -> SpeculativeConfig | None:
        settings = make_serve_settings(merge_sources(parse("--speculative-config", text), {}))
        return settings.engine.speculative_config

    fields = {"method": "ngram", "num_speculative_tokens": 4}
    config = read(json.dumps(fields))
    assert config is not None
    assert (config.num_speculative_tokens, config.shortest_ngram, config.longest_ngram) == (4, 5, 5)
    config = read(json.dumps({**fields, "prompt_lookup_min": 2, "prompt_lookup_max": 6}))
    assert config is not None
    assert (config.shortest_ngram, config.longest_ngram) == (2, 6)
    config = read(json.dumps({**fields, "prompt_lookup_max": 3}))
    assert config is not None
    assert (config.shortest_ngram, config.longest_ngram) == (3, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ngram", "JSON is malformed"),
        ('{"method": "ngram"}', "missing required field `num_speculative_tokens`"),
        ('{"num_speculative_tokens": 2}', "missing required field `method`"),
        (
            '{"method": "draft_model", "num_speculative_tokens": 2}',
            "value 'draft_model' - at `[$].method`",
        ),
        (
            '{"method": "ngram", "model": "small", "num_speculative_tokens": 2}',
            "unknown field `model`",
        ),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens"),
        ('{"method": "ngram", "num_speculative_tokens": 33}', "<= 32"),
        (
            '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 4, '
            '"prompt_lookup_max": 3}',
            "prompt_lookup_min is 4; it must be at most prompt_lookup_max, 3",
        ),
    ],
)
def test_error_in_the_speculative_config_names_it(text: str, message: str) -> None:
    with pytest.raises(SetupError, match=message) as caught:
        make_serve_settings(merge_sources(parse("--speculative-config", text), {}))
    assert str(caught.value).startswith("--speculative-config {" if "{" in text else "--spec")


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
        ({"CONTINUO_ROOT_PATH": "llm"}, "--root-path llm: expected a path, as /llm"),
        ({"CONTINUO_ROOT_PATH": "//llm"}, "--root-path //llm: expected a path"),
        ({"CONTINUO_ROOT_PATH": "/llm?x"}, "--root-path /llm.x: expected a path"),
    ],
)
def test_error_in_an_option_names_option_and_value(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        make_serve_settings(merge_sources(parse(), environ))


@pytest.mark.parametrize("text", ["/llm", "/llm/", "/", "", "/a/b"])
def test_root_path_has_no_slash_at_its_end(text: str) -> None:
    settings = make_serve_settings(merge_sources(parse("--root-path", text), {}))
    assert settings.root_path == text.rstrip("/")


@pytest.mark.parametrize("key", ["", " "])
def test_empty_api_key_is_refused(key: str) -> None:
    with pytest.raises(SetupError, match="--api-key is empty"):
        make_serve_settings(merge_sources(parse("--api-key", "k", "--api-key", key), {}))


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
