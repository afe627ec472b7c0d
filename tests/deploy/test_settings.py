"""server.toml, client-<id>.toml and policy.toml: read with absolute paths, refused with the file
and the key.
"""

import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plfl.data.sources import place_source
from plfl.deploy.files.addresses import join_address, split_address
from plfl.deploy.files.settings import (
    ClientSettings,
    Policy,
    ServerSettings,
    read_client,
    read_policy,
    read_server,
)
from plfl.errors import BadInput

SERVER = '[server]\nhost = "x.org"\nport = 9092\nname = "pilot"\n'
CLIENT = '[client]\nid = "a"\nserver = "x.org:9092"\ndata = "meter.csv"\n'


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_left_out_takes_its_default_and_paths_are_taken_from_the_file_s_folder(
    tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    write(
        tmp_path / "here" / "server.toml", SERVER + 'certificate = "/etc/x.crt"\nkeys = "../keys"\n'
    )
    monkeypatch.chdir(tmp_path)
    found = read_server("here/server.toml")
    assert found.certificate == Path("/etc/x.crt")
    assert found.key == tmp_path / "here" / "server.key"
    assert found.keys.resolve() == tmp_path / "keys"
    assert vars(found.rounds) == {
        "deadline_seconds": 600,
        "slack": 2.5,
        "quorum": 0.5,
        "retries": 1,
    }
    assert found.address == "x.org:9092"


@pytest.mark.parametrize(
    ("host", "listen", "bind"),
    [
        ("fl.example.org", "", (None, 9092)),
        ("203.0.113.9", "", (None, 9092)),
        ("localhost", "", ("localhost", 9092)),
        ("127.0.0.1", "", ("127.0.0.1", 9092)),
        ("fl.example.org", "10.0.0.7:19092", ("10.0.0.7", 19092)),
        ("fl.example.org", "[::]:443", ("::", 443)),
        ("fl.example.org", "0.0.0.0:9092", ("0.0.0.0", 9092)),
    ],
)
def test_a_server_listens_where_it_is_told_and_otherwise_where_its_host_can_be(
    tmp_path, host, listen, bind
):
    text = SERVER.replace("x.org", host) + f'listen = "{listen}"\n'
    settings = read_server(write(tmp_path / "server.toml", text))
    assert settings.bind == bind
    assert settings.address == f"{host}:9092"


def test_the_run_s_config_is_the_recipe_with_the_settings_changed(tmp_path):
    text = SERVER + '[run]\nrecipe = "forecast"\n[run.settings]\nrounds = 7\nlags = false\n'
    config = read_server(write(tmp_path / "server.toml", text)).run.config()
    assert (config.recipe, config.rounds, config.lags) == ("forecast", 7, False)


def test_a_client_s_paths_are_taken_from_the_file_s_folder(tmp_path):
    text = CLIENT + '[client.data_settings]\ntimezone = "America/Chicago"\nstatics = "areas.csv"\n'
    found = read_client(write(tmp_path / "client-a.toml", text))
    assert found.data == f"{tmp_path}/meter.csv"
    assert found.data_settings == {
        "timezone": "America/Chicago",
        "statics": f"{tmp_path}/areas.csv",
    }
    assert (found.key, found.policy, found.host) == (
        tmp_path / "node.key",
        tmp_path / "policy.toml",
        "x.org",
    )


@pytest.mark.parametrize(
    ("source", "placed"),
    [
        ("meter.csv", "/here/meter.csv"),
        ("/data/meter.csv", "/data/meter.csv"),
        (
            "meter.csv?unit=Wh&stamp_timezone=Etc/GMT+6",
            "/here/meter.csv?unit=Wh&stamp_timezone=Etc/GMT+6",
        ),
        ("meter.csv?statics=my%20areas.csv", "/here/meter.csv?statics=/here/my%20areas.csv"),
        ("a:b.csv", "/here/a:b.csv"),
        ("bundled:CA?buildings=2", "bundled:CA?buildings=2"),
        ("comstock:sets/one?state=CA", "comstock:/here/sets/one?state=CA"),
    ],
)
def test_a_source_is_the_same_one_when_it_is_read_from_elsewhere(source, placed):
    assert place_source(source, Path("/here")) == placed


def test_a_folder_whose_name_would_begin_the_options_of_a_source_is_refused():
    assert place_source("bundled:CA", Path("/why?")) == "bundled:CA"
    with pytest.raises(BadInput, match=r"/why\? has a question mark in its name"):
        place_source("meter.csv", Path("/why?"))


@given(
    client=st.text(min_size=1, max_size=40).filter(str.strip),
    data=st.text(min_size=1, max_size=40).filter(lambda text: text.strip() and "\0" not in text),
)
def test_any_id_and_source_survive_being_written(client, data):
    written = ClientSettings(id=client, server="x.org:1", data=data).to_toml()
    found = tomllib.loads(written)["client"]
    assert (found["id"], found["data"]) == (client, data)


def test_what_is_written_is_what_is_read(tmp_path):
    server = ServerSettings(
        host="::1", port=1, name="x", run={"recipe": "forecast", "settings": {"personal": ["a.*"]}}
    )
    found = read_server(write(tmp_path / "server.toml", server.to_toml()))
    assert (found.address, found.run) == ("[::1]:1", server.run)
    policy = Policy(min_batch=16, recipes=["paper"], layers=["lstm.*", "x"], apps=["0" * 64])
    assert read_policy(write(tmp_path / "policy.toml", policy.to_toml())) == policy


@given(
    host=st.sampled_from(["x.org", "10.0.0.1", "::1", "2001:db8::7"]), port=st.integers(1, 65535)
)
def test_splitting_an_address_undoes_joining_it(host, port):
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"has no table \[server\]; write \[server\] above its keys"),
        ("[server", "is not valid TOML"),
        ("x = " + "[" * 5000, "is not valid TOML"),
        ("server = 3", r"\[server\] must be a table of keys and values, not '3'"),
        ("[serber]", r"has no table 'serber'; did you mean 'server'\?"),
        ("[other]", "has no table 'other'; known tables: server, rounds, run"),
        (
            '[server]\nport = 1\nname = "x"',
            r"\[server\] host is missing; The name or address by which",
        ),
        (SERVER + "rounds = 3", r"\[server\] has no key 'rounds'"),
        (
            SERVER + 'certificat = "x"',
            r"\[server\] has no key 'certificat'; did you mean 'certificate'\?",
        ),
        (
            SERVER + 'key = ""',
            r"\[server\] key = '': must be the path of a file or folder; .* key = \"server.key\"",
        ),
        (SERVER + "ca = 3", r"\[server\] ca = 3: must be the path of a file or folder"),
        (
            SERVER.replace("x.org", "http://x"),
            r"\[server\] host = 'http://x' is neither a DNS name",
        ),
        (SERVER.replace("9092", "99999"), r"\[server\] port = 99999 is no port"),
        (SERVER + 'listen = "10.0.0.7"', r"'10\.0\.0\.7' is no address; write host:port"),
        (
            SERVER + 'listen = "here.org:9092"',
            r"'here\.org:9092' has no IP address; write one of this machine's",
        ),
        (SERVER + 'listen = "10.0.0.7:0"', r"port = 0 is no port"),
        (SERVER + "listen = 9092", r"9092 is no address"),
        (SERVER.replace("pilot", "a b"), r"\[server\] name = 'a b': must be letters, digits"),
        (
            SERVER + "[rounds]\nquorum = 1.5",
            r"\[rounds\] quorum = 1.5: .*less than or equal to 1; .* quorum = 0.5",
        ),
        (SERVER + "[rounds]\nquorum = 0", r"\[rounds\] quorum = 0: "),
        (
            SERVER + "[rounds]\nquorum = true",
            r"\[rounds\] quorum = True: a number or a text is needed, not true; .* quorum = 0.5",
        ),
        (SERVER + "[rounds]\nretries = -1", r"\[rounds\] retries = -1: "),
        (SERVER + "[rounds]\nslack = 0.9", r"\[rounds\] slack = 0.9: "),
        (SERVER + "[rounds]\ndeadline_seconds = inf", r"\[rounds\] deadline_seconds = inf: "),
        (
            SERVER + "[rounds]\ndeadline = 5",
            r"\[rounds\] has no key 'deadline'; did you mean 'deadline_seconds'",
        ),
        (
            SERVER + '[run]\nrecipe = "papper"',
            r"\[run\] unknown recipe 'papper'; known recipes: forecast, paper",
        ),
        (
            SERVER + "[run.settings]\nround = 5",
            r"\[run\] unknown config key 'round'; did you mean 'rounds'\?",
        ),
        (SERVER + "[run.settings]\nrounds = 0", r"\[run\] rounds = 0: "),
        (
            SERVER + '[run.settings]\ndata = "x.csv"',
            r"settings.data: data is named in each client's own file",
        ),
        (
            SERVER + '[run.settings]\nrecipe = "paper"',
            r"settings.recipe: it has a key of its own in \[run\]",
        ),
    ],
)
def test_a_wrong_server_file_is_refused_with_file_and_key(tmp_path, text, message):
    with pytest.raises(BadInput, match=rf"server\.toml.*{message}"):
        read_server(write(tmp_path / "server.toml", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]", r"has no table 'server'; known tables: client"),
        (
            CLIENT.replace('data = "meter.csv"', ""),
            r"\[client\] data is missing; This client's readings",
        ),
        (CLIENT.replace("meter.csv", " "), r"\[client\] data = ' ': must not be empty"),
        (CLIENT.replace('"a"', '""'), r"a client's id must not be empty"),
        (CLIENT.replace('"a"', "7"), r"a client's id is a text such as house-7, not 7"),
        (CLIENT.replace(":9092", ""), r"'x.org' is no address; write host:port, such as"),
        (CLIENT.replace("x.org:9092", "::1:9092"), r"'::1:9092' is no address; .* \[::1\]:9092"),
        (CLIENT.replace(":9092", ":0"), "port = 0 is no port"),
        (
            CLIENT + "[client.data_settings]\ntimezon = 1",
            r"data_settings has no key 'timezon'; did you mean 'timezone'",
        ),
        (CLIENT + "[client.data_settings]\nrounds = 1", r"data_settings has no key 'rounds'; "),
        (CLIENT + '[client.data_settings]\nunit = "J"', r"data_settings: unit = 'J': "),
    ],
)
def test_a_wrong_client_file_is_refused_with_file_and_key(tmp_path, text, message):
    with pytest.raises(BadInput, match=rf"client-a\.toml.*{message}"):
        read_client(write(tmp_path / "client-a.toml", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_batch = 0", r"min_batch = 0: .*; write it as in min_batch = 8"),
        ("min_batch = true", r"min_batch = True: a number or a text is needed, not true"),
        ("max_rounds = 0", r"max_rounds = 0: .*; write it as in max_rounds = 10000"),
        ("min_batches = 9", r"has no key 'min_batches'; did you mean 'min_batch'\?"),
        ('layers = "*"', r"layers = '\*': .*; write a list, as in \[\"\*\"\]"),
        ('layers = [""]', r"layers = '': must not be empty"),
        ('recipes = ["papper"]', r"unknown recipe 'papper'"),
        ('apps = ["x"]', r"apps = 'x': must be the SHA-256 of a bundle: 64 digits"),
    ],
)
def test_a_wrong_policy_is_refused_with_file_and_key(tmp_path, text, message):
    with pytest.raises(BadInput, match=rf"policy\.toml: .*{message}"):
        read_policy(write(tmp_path / "policy.toml", text))


@pytest.mark.parametrize("read", [read_server, read_client, read_policy])
def test_a_file_that_is_not_there_or_not_text_is_refused_with_the_one_to_give(tmp_path, read):
    with pytest.raises(
        BadInput, match=r"x\.toml cannot be read \(No such file or directory\); give the "
    ):
        read(tmp_path / "x.toml")
    with pytest.raises(BadInput, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)
    (tmp_path / "y.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"y\.toml is not valid TOML"):
        read(tmp_path / "y.toml")


@given(st.sampled_from([read_server, read_client, read_policy]), st.text(max_size=80))
def test_no_file_ends_in_anything_but_settings_or_bad_input(tmp_path_factory, read, text):
    path = tmp_path_factory.mktemp("any") / "any.toml"
    path.write_text(text, encoding="utf-8")
    with suppress(BadInput):
        read(path)
