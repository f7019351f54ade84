"""What a server is told by flags, by the environment and by a file; which models it is to have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest
import typer
from typer.core import TyperOption
from typer.testing import CliRunner

from blazr.agent.config import read_mcp_config
from blazr.bench.workload import BenchRequest, read_workload
from blazr.cli.app import app
from blazr.cli.model_plans import plan_models, read_settings
from blazr.cli.options import ServeFlags, flag_names, read_schema, with_flags
from blazr.cli.serve import read_api_keys, variables
from blazr.core.errors import ConfigError
from blazr.server.config import Limits

GROUP = typer.main.get_command(app)
SERVE = GROUP.get_command(typer.Context(GROUP), "serve")
SHOWN = [row for row in SERVE.params if isinstance(row, TyperOption) and not row.hidden]
OPTIONS = [row for row in SHOWN if row.name != "config"]
# Of flags that are no switches, and take neither a number nor any text.
SAMPLES = {"access_log": "json"}


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    """--verbose changes it."""
    logger = logging.getLogger("blazr")
    before = (logger.level, list(logger.handlers), logger.propagate)
    yield
    logger.level, logger.handlers[:], logger.propagate = before


def settings(*args: str) -> dict[str, object]:
    return SERVE.make_context("serve", list(args)).params


def sample(row: TyperOption) -> str:
    if row.name in SAMPLES:
        return SAMPLES[row.name]
    if row.is_flag:
        return "0" if row.default else "1"
    return "12"


def said(row: TyperOption, value: str) -> list[str]:
    if row.is_flag:
        return [(row.secondary_opts if row.default else row.opts)[0]]
    return [row.opts[0], value]


@pytest.mark.sample
@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_every_flag_is_also_a_variable_and_a_setting(
    row: TyperOption, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    value = sample(row)
    wanted = settings(*said(row, value))[row.name]
    assert wanted != settings()[row.name]
    monkeypatch.setenv(f"BLAZR_{row.name.upper()}", value)
    assert settings()[row.name] == wanted
    monkeypatch.delenv(f"BLAZR_{row.name.upper()}")
    text = msgspec.json.encode(wanted, enc_hook=str).decode()  # which is TOML too
    file = tmp_path / "blazr.toml"
    file.write_text(f"{row.name.replace('_', '-')} = {text}\n")
    assert settings("--config", str(file))[row.name] == wanted
    monkeypatch.setenv("BLAZR_CONFIG", str(file))
    assert settings()[row.name] == wanted


def test_every_flag_s_variable_is_declared() -> None:
    declared = [row.name for row in variables()]
    assert {f"BLAZR_{row.name.upper()}" for row in SHOWN} <= set(declared)
    assert not {"BLAZR_AS_REPLICA", "BLAZR_MODEL_ARGUMENT"} & set(declared)
    assert len(declared) == len(set(declared))


def test_flags_go_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "blazr.toml"
    file.write_text("port = 1\nhost = 'file'\nuds = 'file'\n")
    monkeypatch.setenv("BLAZR_PORT", "2")
    monkeypatch.setenv("BLAZR_HOST", "environment")
    found = settings("--config", str(file), "--port", "3")
    assert (found["port"], found["host"], found["uds"]) == (3, "environment", "file")


def test_limits_of_clients_may_be_set(tmp_path: Path) -> None:
    file = tmp_path / "blazr.toml"
    file.write_text("keep-alive = 2.5\n")
    found = settings("--config", str(file), "--max-body", "20MB", "--request-timeout", "30")
    assert (found["max_body"], found["request_timeout"], found["keep_alive"]) == (20 << 20, 30, 2.5)


@pytest.mark.parametrize("flag", ["--max-body", "--max-bodies", "--models-memory", "--files-disk"])
@pytest.mark.parametrize("text", ["much", "nan", "inf", "-1", "0", "0.6", "1e400", "1e-9MB"])
def test_the_flag_of_a_wrong_size_is_named(flag: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"size after {flag} ") as raised:
        settings(flag, text)
    found = raised.value
    assert (found.found, found.hint) == (repr(text), f"{flag} 100MB")
    assert "share" not in found.expected
    assert settings(*found.hint.split())[flag[2:].replace("-", "_")] == 100 << 20


@pytest.mark.parametrize("name", [each.name for each in fields(Limits)])
def test_the_flag_of_a_limit_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match="the limit --") as raised:
        Limits(**{name: 0})
    flag = raised.value.message.split()[2]
    assert [row.opts for row in OPTIONS if flag in row.opts] == [[flag]]


def test_several_values_stand_between_commas(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLAZR_API_KEY", "b, c")
    assert settings()["api_key"] == ["b", "c"]
    assert settings("--api-key", "a,b")["api_key"] == ["a,b"]
    file = tmp_path / "blazr.toml"
    file.write_text("cors-origin = ['a', 'b']\nserved-model-name = 'one'\n")
    found = settings("--config", str(file))
    assert (found["cors_origin"], found["served_model_name"]) == (["a", "b"], ["one"])


@pytest.mark.parametrize(
    ("line", "variable", "found"),
    [
        ([], None, None),
        ([], "a=x,b=/my y", "a=x,b=/my y"),
        (["--adapter", "a=x,b=y"], "c=z", "a=x,b=y"),
        (["--adapter", "a=x", "--adapter", "b=y,c=/my z"], None, "a=x,b=y,c=/my z"),
    ],
)
def test_adapters_stand_between_commas_or_behind_flags_of_their_own(
    line: list[str], variable: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[ServeFlags] = []

    @with_flags
    def probe(*, load: ServeFlags) -> None:
        loads.append(load)

    if variable is not None:
        monkeypatch.setenv("BLAZR_ADAPTER", variable)
    probed = typer.Typer(context_settings={"auto_envvar_prefix": "BLAZR"})
    probed.command()(probe)
    CliRunner().invoke(probed, line, catch_exceptions=False)
    assert [each.adapter for each in loads] == [found]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("port = 1", read_settings),
        ("secret", lambda file: read_api_keys((), file)),
        ('{"mcpServers": {"a": {"command": "b"}}}', read_mcp_config),
        ('{"enum": [1]}', lambda file: read_schema(str(file))),
        ('{"prompt_tokens": 3}', lambda file: read_workload(file, BenchRequest())),
    ],
    ids=["settings", "keys", "mcp", "schema", "workload"],
)
def test_a_file_may_begin_with_a_byte_order_mark(
    text: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    """As editors of Windows put it there."""
    (tmp_path / "plain").write_text(text, encoding="utf-8")
    (tmp_path / "marked").write_text(text, encoding="utf-8-sig")
    assert read(tmp_path / "marked") == read(tmp_path / "plain")


def test_a_tilde_is_the_home_directory() -> None:
    """In settings files and variables, and behind ``--flag=``, no shell has put it there."""
    home = Path.home()
    assert settings("--files-dir=~/files")["files_dir"] == home / "files"
    (planned,) = plan_models((), None, replace(FLAGS, adapter="a=~/a,b=/~/b"), default="~/m")
    assert planned.adapters == {"a": home / "a", "b": Path("/~/b")}


def test_a_model_on_the_command_line_goes_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLAZR_MODEL", "other")
    assert settings()["model"] == ["other"]
    assert settings("mine")["model"] is None
    assert settings("mine", "--model", "another")["model"] == ["another"]


@pytest.mark.parametrize(
    "text", ["nope = 1", "port", "config = 'x'", "help = true", "\x00", "a = 1\na = 2"]
)
def test_a_wrong_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "blazr.toml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        settings("--config", str(file))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("port = true", "a number or a text"),
        ("request-timeout = true", "a number or a text"),
        ("host = false", "a number or a text"),
        ("host = [1]", "a number or a text"),
        ("cache-dir = 1979-05-27", "a number or a text"),
        ("api-key = true", "a number or a text"),
        ("api-key = ['a', true]", "a number or a text"),
        ("cors-origin = [['a']]", "a number or a text"),
        ("cpu = []", "true or false"),
    ],
)
def test_a_value_of_another_kind_is_refused(line: str, expected: str, tmp_path: Path) -> None:
    """Python takes true for 1, and has a text for anything."""
    file = tmp_path / "blazr.toml"
    file.write_text(line)
    with pytest.raises(ConfigError, match="not of its flag's kind") as raised:
        settings("--config", str(file))
    key = line.partition(" ")[0]
    assert raised.value.found.startswith(f"{key} = ")
    assert raised.value.expected == expected


def test_what_only_replicas_are_told_is_no_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLAZR_AS_REPLICA", "foo")
    assert settings()["as_replica"] is None
    file = tmp_path / "blazr.toml"
    file.write_text("as-replica = 'foo'")
    with pytest.raises(ConfigError, match="a key that is not a flag"):
        settings("--config", str(file))


@pytest.mark.parametrize(
    ("key", "closest"),
    [("prot", "closest: port"), ("api-keyfile", "closest: api-key-file"), ("zzz", "")],
)
def test_a_mistyped_key_is_told_the_closest(key: str, closest: str, tmp_path: Path) -> None:
    file = tmp_path / "blazr.toml"
    file.write_text(f"{key} = 1")
    with pytest.raises(ConfigError) as raised:
        settings("--config", str(file))
    assert raised.value.hint == closest
    file.write_text("[models.a]\npath = 'x'\nmax-runing = 1")
    with pytest.raises(ConfigError, match="'max_runing'; closest: max-running"):
        plan(file=file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        settings("--config", str(tmp_path / "none.toml"))


def test_keys_come_from_flags_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nd\n\n e \n  # theirs\n")
    assert read_api_keys(["a", "b"], file) == ("a", "b", "d", "e")
    file.write_text("#\n")
    with pytest.raises(ConfigError):
        read_api_keys([], file)
    with pytest.raises(ConfigError):
        read_api_keys([], tmp_path / "none")


FLAGS = ServeFlags(**{name: settings()[name] for name in flag_names(ServeFlags)})


def plan(*named: str, file: Path | None = None) -> list[tuple[str | None, str]]:
    plans = plan_models(named, file, FLAGS, default="nano")
    return [(each.name, each.path) for each in plans]


def test_models_of_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan() == [(None, "nano")]
    assert plan("a/b") == [(None, "a/b")]
    assert plan("small=nano") == [("small", "nano")]
    assert plan("a=x", "b=y=z") == [("a", "x"), ("b", "y=z")]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd=name").mkdir()
    assert plan("odd=name") == [(None, "odd=name")]


@pytest.mark.parametrize(
    ("named", "found"), [(("a", "b"), "a, b"), (("x=a", "b"), "x, b"), (("x=a", "x=b"), "x, x")]
)
def test_several_models_need_names(named: tuple[str, ...], found: str) -> None:
    with pytest.raises(ConfigError, match="each of several models needs a name") as raised:
        plan(*named)
    assert raised.value.found == found


def test_models_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "blazr.toml"
    file.write_text(
        "port = 1\n[models]\nsmall = 'nano'\n"
        "[models.'org/big']\npath = '/x'\nmax-seq-len = 100\ndtype = 'bfloat16'\n"
    )
    assert plan(file=file) == [("small", "nano"), ("org/big", "/x")]
    small, big = plan_models((), file, FLAGS, default="nano")
    assert small.flags == FLAGS
    assert (big.flags.max_seq_len, big.flags.dtype) == (100, "bfloat16")
    assert big.flags.max_running == FLAGS.max_running
    assert plan("mine", file=file) == [(None, "mine")]
    assert settings("--config", str(file))["port"] == 1


def test_a_table_may_list_adapters_as_the_flag_is_repeated(tmp_path: Path) -> None:
    file = tmp_path / "blazr.toml"
    file.write_text("[models.a]\npath = 'nano'\nadapter = ['x=a', 'y=b']\n")
    (planned,) = plan_models((), file, FLAGS, default="nano")
    assert [*planned.adapters] == ["x", "y"]
    file.write_text("[models.a]\npath = 'nano'\nadapter = [1]\n")
    with pytest.raises(ConfigError, match="the model 'a' in the settings file is not understood"):
        plan_models((), file, FLAGS, default="nano")


def test_one_limit_of_files_is_for_all_models_that_keep_any(tmp_path: Path) -> None:
    file, limited = tmp_path / "blazr.toml", replace(FLAGS, cache_disk="1GiB")
    file.write_text("[models]\na = 'nano'\nb = {path = 'nano', cache-dir = 'x'}\n")
    first, second = plan_models((), file, limited, default="nano")
    assert (first.flags.cache_dir, second.flags.cache_dir) == (None, "x")
    file.write_text("[models]\na = 'nano'\nb = 'nano'\n")
    with pytest.raises(ConfigError, match="there is no cache_dir"):
        plan_models((), file, limited, default="nano")


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("models = 1", ""),
        ("[models]\na = 1", "1"),
        ("[models]\na = ''", "no path"),
        ("[models.a]\ndtype = 'float32'", "no path"),
        ("[models.a]\npath = 'x'\nport = 1", "there is no key 'port'"),
        (
            "[models.a]\npath = 'x'\nmax-running = 'many'",
            "Expected `int`, got `str` - at `$.max_running`",
        ),
        (
            "[models.a]\npath = 'x'\nmax-running = true",
            "Expected `int`, got `bool` - at `$.max_running`",
        ),
        ("[models]\n'' = 'x'", "''"),
    ],
)
def test_wrong_tables_of_models_are_refused(table: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "blazr.toml"
    file.write_text(table)
    with pytest.raises(ConfigError) as raised:
        plan(file=file)
    assert raised.value.found == found


def test_the_size_of_weights_is_known_before_they_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x" * 10)
    (tmp_path / "b.safetensors").write_bytes(b"x" * 20)
    (tmp_path / "config.json").write_bytes(b"x" * 40)

    def size(path: Path | str) -> int:
        return plan_models([str(path)], None, FLAGS, default="")[0].num_bytes

    assert size(tmp_path) == 30
    assert size(tmp_path / "a.safetensors") == 10
    assert size("org/name") == 0
