"""The configuration is strict, says where a value came from, and names the nearest known key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onelog.base.errors import ConfigError
from onelog.cli.example import toml_value
from onelog.config import DEFAULT_PORTS, Config, ConfigProblems, file_problems, load
from onelog.config.keys import known_keys
from onelog.config.positions import lines_of_keys
from onelog.config.units import format_quantity, parse_quantity


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str) -> Path:
        file = tmp_path / "onelog.toml"
        file.write_text(text)
        return file

    return _write


def test_without_file_environment_and_flags_every_value_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load()
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.file is None


def test_flags_beat_the_environment_which_beats_the_file_which_beats_the_default(write):
    file = write('[log]\nlevel = "error"\nformat = "json"\n[node]\nname = "file"\n')
    loaded = load(
        file,
        {"ONELOG_LOG_FORMAT": "console", "ONELOG_NODE_NAME": "env"},
        ["node.name=flag"],
    )
    assert loaded.config.log.level == "error"
    assert loaded.config.log.format == "console"
    assert loaded.config.node.name == "flag"
    assert loaded.sources["log.level"] == str(file)
    assert loaded.sources["log.format"] == "ONELOG_LOG_FORMAT"
    assert loaded.sources["node.name"] == "--set node.name"
    assert loaded.sources["node.id"] == "default"


def test_an_unknown_key_is_refused_with_the_file_the_key_and_the_nearest_known_one(write):
    file = write("[listeners.admin]\nprot = 1\n")
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert str(file) in str(raised.value)
    assert "unknown key listeners.admin.prot" in str(raised.value)
    assert "did you mean listeners.admin.port?" in str(raised.value)


def test_an_unknown_table_is_refused_with_the_nearest_known_one(write):
    with pytest.raises(ConfigError, match=r"unknown key cursor \(did you mean cursors\?\)"):
        load(write("[cursor]\ncheckpoint_interval_ms = 1\n"))


def test_an_unknown_variable_is_refused_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match=r"ONELOG_LOG_LEVLE \(did you mean ONELOG_LOG_LEVEL\?\)"):
        load(None, {"ONELOG_LOG_LEVLE": "debug"})


def test_an_unknown_flag_is_refused_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match=r"unknown key log.levl \(did you mean log.level\?\)"):
        load(None, {}, ["log.levl=debug"])


def test_reserved_variables_and_kubernetes_links_are_no_configuration_keys():
    environ = {
        "ONELOG_PURE": "1",
        "ONELOG_FAULTS": "x=exit",
        "ONELOG_REQUIRE_NATIVE": "1",
        "ONELOG_SERVICE_HOST": "10.0.0.1",
        "ONELOG_PORT": "tcp://10.0.0.1:8080",
        "ONELOG_PORT_8080_TCP_ADDR": "10.0.0.1",
        "HOME": "/",
    }
    assert load(None, environ).config == Config()


def test_the_file_can_be_named_by_the_environment(write):
    file = write('[node]\nname = "here"\n')
    assert load(None, {"ONELOG_CONFIG": str(file)}).config.node.name == "here"


def test_a_named_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[listeners.admin]\nport = 'x'", r"listeners\.admin\.port = \"x\": expected `int`"),
        ("[listeners.admin]\nport = 70000", r"listeners\.admin\.port = 70000: .*<= 65535"),
        ("[defaults.stream]\nengine = 'sgment'", "expected one of segment, memory, kv"),
        ("[node]\nname = 5", r"node\.name = 5: expected `str`"),
        ("[main]\nretention_bytes = '10 parsecs'", "unknown unit 'parsecs'"),
        ("[main]\nretention_age_ms = true", "expected `int`, got `bool`"),
        ("listeners = 3", "listeners is a table of keys"),
        ("a = ", "not valid TOML"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_what_was_expected(write, text, problem):
    with pytest.raises(ConfigError, match=problem):
        load(write(text))


def test_every_error_is_told_at_once_each_with_its_line(write):
    file = write(
        "# a comment\n"
        'data_dir = "d"\n'
        "[log]\n"
        'level = "loud"\n'
        "[mqtt]\n"
        "rewrite = [\n"
        '  { filter = "a/#", to = """b\n'
        '[log]\n""" },\n'
        "]\n"
        "nothing_like_it_anywhere = 1\n"
        "[listeners]\n"
        "admin.port = 70000\n"
        'admin.host = "0.0.0.0"\n'
        "kafka_tls = { enabled = true }\n"
    )
    with pytest.raises(ConfigProblems) as raised:
        load(file, {"ONELOG_LOG_LEVLE": "x", "ONELOG_NODE_ID": "-1"}, ["log", "main.partitions=0"])
    assert raised.value.lines == (
        f'{file}:4: log.level = "loud": expected one of debug, info, warning, error',
        f"{file}:11: unknown key mqtt.nothing_like_it_anywhere;"
        " `onelog config show` lists every key",
        f"{file}:13: listeners.admin.port = 70000: expected `int` <= 65535,"
        " such as 8080 (the default)",
        "unknown environment variable ONELOG_LOG_LEVLE (did you mean ONELOG_LOG_LEVEL?)",
        "ONELOG_NODE_ID: node.id = -1: expected `int` >= 0, such as 0 (the default)",
        "--set log: expected key=value, such as log.level=debug",
        "--set main.partitions = 0: expected `int` >= 1, such as 8 (the default)",
        f"{file}:14: listeners.admin.host = '0.0.0.0' opens the admin API to other machines, and"
        " passwords would cross the network in plain text: set listeners.admin.tls.cert_file and"
        " key_file, or listeners.admin.insecure = true if a proxy in front encrypts",
        f"{file}:15: listeners.kafka_tls.tls.cert_file is missing: the listener needs a certificate"
        " and its key",
        f"{file}:15: listeners.kafka_tls.tls.key_file is missing: the listener needs a certificate"
        " and its key",
    )


def test_what_is_no_toml_is_told_with_line_and_column(write):
    file = write("[log]\nlevel = debug\n")
    with pytest.raises(ConfigProblems) as raised:
        load(file, {"ONELOG_LOG_LEVLE": "x"})
    first, second = raised.value.lines
    assert first == f"{file}:2:9: not valid TOML: invalid value"
    assert "ONELOG_LOG_LEVLE" in second


def test_a_key_that_is_wrong_is_not_told_twice(write):
    file = write("[listeners.admin]\nhost = 5\n")
    with pytest.raises(ConfigProblems) as raised:
        load(file)
    assert len(raised.value.lines) == 1


def test_the_line_of_a_key_is_found_however_it_is_written():
    text = (
        "a.b = 1\n"
        '"c" = """\n[x]\ny = 1\n"""\n'
        "[t.u]\n"
        "v = [\n  1,\n]\n"
        "# w = 3\n"
        "w = { x = 1 }\n"
        "[[rows]]\n"
        "n = 1\n"
        "[[rows]]\n"
        "m = 2"
    )
    assert lines_of_keys(text) == {
        "a": 1, "a.b": 1, "c": 2, "t": 6, "t.u": 6, "t.u.v": 7, "t.u.w": 11, "t.u.w.x": 11,
        "rows": 12, "rows.n": 13, "rows.m": 15,
    }  # fmt: skip


def test_only_a_line_feed_ends_a_line():
    assert lines_of_keys('a = "x\u2028\x85y"\r\nb = 1\r\n') == {"a": 1, "b": 2}


def test_files_that_are_named_and_cannot_be_read_are_told_with_their_line(write):
    file = write(
        "[security.tokens]\njwks_file = 'gone.json'\n"
        "[listeners.mqtt_tls]\ntls.cert_file = 'off.pem'\n"
    )
    loaded = load(file)
    assert [loaded.tell(row) for row in file_problems(loaded.config)] == [
        f'{file}:2: security.tokens.jwks_file = "gone.json" cannot be read: '
        "No such file or directory"
    ]


def test_every_environment_name_is_unique_and_not_reserved():
    names = [key.env for key in known_keys().values()]
    assert len(set(names)) == len(names)
    assert not {n for n in names if n.startswith(("ONELOG_SERVICE", "ONELOG_PORT"))}
    assert "ONELOG_CONFIG" not in names


def test_every_key_can_be_set_by_flag_and_by_environment_to_its_default():
    for key in known_keys().values():
        text = toml_value(key, key.default)
        assert load(None, {key.env: text}).config == Config()
        assert load(None, {}, [f"{key.path}={text}"]).config == Config()


def test_a_word_that_looks_like_a_number_stays_text_where_text_is_wanted():
    assert load(None, {"ONELOG_NODE_NAME": "7"}).config.node.name == "7"
    assert load(None, {}, ['node.name="a b"']).config.node.name == "a b"


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("256MiB", "bytes", 256 * 1024 * 1024),
        ("10GB", "bytes", 10_000_000_000),
        ("10 gb", "bytes", 10_000_000_000),
        ("1.5kB", "bytes", 1500),
        ("17", "bytes", 17),
        ("unlimited", "bytes", -1),
        ("7d", "ms", 604_800_000),
        ("500ms", "ms", 500),
        ("1.5s", "ms", 1500),
    ],
)
def test_sizes_and_durations_are_read_as_people_write_them(text, unit, value):
    assert parse_quantity(text, unit) == value


@pytest.mark.parametrize("text", ["", "MB", "-5MB", "1e3", "0.0001kB", "5 m b"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"is not|unknown unit"):
        parse_quantity(text, "bytes")


@pytest.mark.parametrize("value", [0, 1, 999, 1000, 1024, 10**10, 256 * 2**20, -1, 86_400_000])
@pytest.mark.parametrize("unit", ["bytes", "ms"])
def test_a_formatted_quantity_reads_back_as_itself(value, unit):
    assert parse_quantity(format_quantity(value, unit), unit) == value


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_the_admin_listener_off_loopback_is_refused_without_tls(host):
    with pytest.raises(ConfigError, match="plain text"):
        load(None, {"ONELOG_LISTENERS_ADMIN_HOST": host})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_the_admin_listener_on_loopback_is_allowed(host):
    assert load(None, {"ONELOG_LISTENERS_ADMIN_HOST": host}).config.listeners.admin.host == host


def test_default_ports_are_distinct_and_only_existing_listeners_have_keys():
    assert len(set(DEFAULT_PORTS.values())) == len(DEFAULT_PORTS)
    listeners = Config().listeners
    names = [field.name for field in msgspec.structs.fields(type(listeners))]
    names.remove("inner")  # other nodes read its port from the metadata
    assert names == [
        "admin",
        "mqtt",
        "mqtt_tls",
        "mqtt_ws",
        "mqtt_wss",
        "kafka",
        "kafka_tls",
        "amqp",
        "amqp_tls",
        "amqp_management",
    ]
    assert {name: getattr(listeners, name).port for name in names} == {
        name: DEFAULT_PORTS[name] for name in names
    }


def test_listeners_that_lack_a_certificate_or_serve_pages_are_off_and_all_bind_loopback():
    listeners = Config().listeners
    held = msgspec.structs.asdict(listeners)
    enabled = {name for name, row in held.items() if name != "inner" and row.enabled}
    assert enabled == {"admin", "mqtt", "kafka", "amqp"}
    assert {row.host for row in held.values()} == {"127.0.0.1"}


def test_mqtt_may_bind_other_addresses_than_loopback():
    assert load(None, {"ONELOG_LISTENERS_MQTT_HOST": "0.0.0.0"}).config.listeners.mqtt.host


@pytest.mark.parametrize("name", ["mqtt_tls", "mqtt_wss"])
def test_a_tls_listener_without_a_certificate_is_refused_with_its_key(name):
    with pytest.raises(ConfigError, match=rf"listeners\.{name}\.tls\.cert_file is missing"):
        load(None, {}, [f"listeners.{name}.enabled=true"])
    with pytest.raises(ConfigError, match=rf"listeners\.{name}\.tls\.key_file is missing"):
        load(
            None,
            {},
            [f"listeners.{name}.enabled=true", f"listeners.{name}.tls.cert_file=server.pem"],
        )


def test_a_websocket_path_begins_with_a_slash():
    with pytest.raises(ConfigError, match=r"listeners\.mqtt_ws\.path = 'mqtt'"):
        load(None, {}, ["listeners.mqtt_ws.path=mqtt"])


def test_limits_of_mqtt_and_who_may_be_anonymous_are_keys():
    loaded = load(
        None,
        {"ONELOG_MQTT_LIMITS_INFLIGHT": "7", "ONELOG_SECURITY_ANONYMOUS": "never"},
        ["mqtt.limits.packet_bytes=2MiB"],
    )
    assert loaded.config.mqtt.limits.inflight == 7
    assert loaded.config.mqtt.limits.packet_bytes == 2 * 1024 * 1024
    assert loaded.config.security.anonymous == "never"


def test_rules_are_lists_of_tables_in_the_file_and_one_value_elsewhere(write):
    text = '[[mqtt.rewrite]]\nfilter = "a/#"\nto = "b/$1"\n[[mqtt.rewrite]]\nto = "c"\n'
    rules = load(write(text)).config.mqtt.rewrite
    assert [(rule.filter, rule.to) for rule in rules] == [("a/#", "b/$1"), ("#", "c")]
    value = '[{filter = "own/%c", qos = 1}]'
    for loaded in (
        load(None, {"ONELOG_MQTT_AUTO_SUBSCRIBE": value}),
        load(None, {}, [f"mqtt.auto_subscribe={value}"]),
    ):
        assert [(row.filter, row.qos) for row in loaded.config.mqtt.auto_subscribe] == [
            ("own/%c", 1)
        ]


def test_a_rule_with_an_unknown_or_missing_field_is_refused(write):
    with pytest.raises(ConfigError, match=r"mqtt\.rewrite.*unknown field `form`"):
        load(write('[[mqtt.rewrite]]\nform = "a/#"\nto = "b"\n'))
    with pytest.raises(ConfigError, match=r"mqtt\.rewrite.*missing required field `to`"):
        load(write('[[mqtt.rewrite]]\nfilter = "a/#"\n'))
