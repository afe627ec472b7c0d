import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.config import Config, furthest_lead, parse_settings, read_config
from plfl.errors import BadInput
from plfl.recipes import DEFAULT_RECIPE, RECIPES, make_recipe

POSITIVE = st.none() | st.floats(1e-30, 1e30)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "data": st.lists(st.text("a:?'\"\\\n\x00é", max_size=5), max_size=3),
        "seed": st.integers(0, 2**32 - 1),
        "lookback": st.sampled_from(["3h", "45min", "1.5d", 12, "7"]),
        "horizon": st.sampled_from(["1h", 4, "up to 24h", "up to 96"]),
        "mlp": st.lists(st.integers(1, 500), max_size=3),
        "quantiles": st.sampled_from([[0.5], [0.1, 0.5, 0.9]]),
        "future": st.lists(st.text("aé ", max_size=3), max_size=2),
        "max_passes": POSITIVE,
        "history_days": st.none() | st.integers(1, 999),
        "personal": st.sampled_from(["none", "mlp", "all", "lstm.bias_*", ["a", "b*"], []]),
        "server": st.sampled_from(
            ["fed_avg", "fed_adagrad", "fed_adam", "fed_yogi", "fed_avg_adaptive"]
        ),
        "client_lr": POSITIVE,
        "server_beta2": st.none() | st.floats(0, 1, exclude_max=True),
        "alpha": POSITIVE,
        "reset_moments": st.booleans(),
        "fraction": st.floats(0, 1, exclude_min=True),
    },
)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("round", "rounds"), ("lookbak", "lookback"), ("clientlr", "client_lr")],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key, nearest):
    with pytest.raises(BadInput, match=f"unknown config key '{key}'; did you mean '{nearest}'"):
        Config(**{key: 1})


def test_a_key_near_to_none_is_refused_with_all_known_ones():
    with pytest.raises(BadInput) as refusal:
        Config(**{"zzz": 1})
    assert all(f" {key}" in str(refusal.value) for key in Config.model_fields)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lookback", 0),
        ("lookback", "3 hours"),
        ("lookback", ""),
        ("horizon", -1),
        ("horizon", "-1h"),
        ("horizon", "0.0d"),
        ("horizon", 1.5),
        ("horizon", "up to"),
        ("horizon", "up to 0h"),
        ("horizon", "up to tomorrow"),
        ("quantiles", []),
        ("quantiles", [0.1, 0.9]),
        ("quantiles", [0.9, 0.5, 0.1]),
        ("quantiles", [0.5, 0.5]),
        ("quantiles", [0, 0.5, 1]),
        ("days", -1),
        ("loss", "mape"),
        ("scale", "log"),
        ("decay", "linear"),
        ("max_passes", 0),
        ("tune_rounds", -1),
        ("tune_lr", 0),
        ("max_gap", "0min"),
        ("batch", 0),
        ("batch", 2.5),
        ("fraction", 0),
        ("fraction", 1.5),
        ("rounds", 0),
        ("rounds", "many"),
        ("local_steps", 0),
        ("eval_every", 0),
        ("hidden", 0),
        ("mlp", [150, 0]),
        ("history_days", 0),
        ("seed", -1),
        ("seed", 2**32),
        ("cores", 0),
        ("client_lr", float("nan")),
        ("client_lr", 0),
        ("server_lr", float("inf")),
        ("client_beta1", 1),
        ("client_beta2", float("nan")),
        ("server_beta2", -0.1),
        ("alpha", -1),
        ("tau", 0),
        ("sync_every", 0),
        ("max_weight", float("nan")),
        ("max_norm_ratio", 0),
        ("checkpoint_seconds", -1),
        ("split", [0.8, 0.1, 0.2]),
        ("split", [0.5, 0.5]),
        ("split", [1.2, -0.1, -0.1]),
        ("split", [0.9, 0.1, 0]),
        ("client", "sgd"),
        ("server", "fedavg"),
        ("device", "tpu"),
        ("start", "home"),
        ("weights", "load"),
        ("aggregate", "krum"),
        ("clip_passes", 0),
        ("trim", 0.5),
        ("trim", 0),
        ("personal", 3),
        ("data", 12),
        ("reset_moments", "perhaps"),
    ],
)
def test_an_impossible_value_is_refused_in_one_line_that_names_its_field(key, value):
    with pytest.raises(BadInput, match=rf"\A{key} .+\Z"):  # the dot matches no line break
        Config(**{key: value})


@pytest.mark.parametrize(
    ("values", "way_out"),
    [
        (
            {"lookback": "3 hours"},
            "a duration such as 45min, 3h or 1d, or a number of intervals such as 12",
        ),
        ({"horizon": "-1h"}, "must be longer than zero, such as 3h"),
        ({"split": [0.8, 0.1, 0.2]}, "must add up to 1, as in [0.8, 0.1, 0.1]"),
        (
            {"quantiles": [0.1, 0.9]},
            "quantiles [0.1, 0.9] must rise and include 0.5, as in [0.1, 0.5, 0.9]",
        ),
        ({"client": "sgd"}, "'adam', 'adam_ams', 'prox' or 'prox_adam'"),
        ({"device": "tpu"}, "'auto', 'cpu' or 'gpu'"),
        ({"rounds": 0}, "rounds = 0: input should be greater than or equal to 1"),
    ],
)
def test_a_refusal_says_what_is_allowed(values, way_out):
    with pytest.raises(BadInput) as refusal:
        Config(**values)
    assert way_out in str(refusal.value)


def test_settings_are_read_as_the_types_they_look_like():
    texts = [
        "rounds=2",
        "client_lr=1e-3",
        "reset_moments=false",
        "history_days=null",
        "mlp=[6, 3]",
        "lookback=3h",
    ]
    assert parse_settings(texts) == {
        "rounds": 2,
        "client_lr": 0.001,
        "reset_moments": False,
        "history_days": None,
        "mlp": [6, 3],
        "lookback": "3h",
    }


def test_a_setting_is_split_at_its_first_equals_sign():
    assert parse_settings([" data = generated:2?days=7 "]) == {"data": "generated:2?days=7"}


def test_the_last_of_two_settings_wins():
    assert parse_settings(["rounds=2", "rounds=3"]) == {"rounds": 3}


def test_a_setting_without_a_value_is_refused():
    with pytest.raises(BadInput, match="--set 'rounds' has no value; write --set key=value"):
        parse_settings(["rounds"])


def test_a_setting_of_an_unknown_key_is_refused():
    with pytest.raises(BadInput, match="unknown config key 'bacth'; did you mean 'batch'"):
        parse_settings(["bacth=3"])


@pytest.mark.parametrize(
    ("personal", "patterns"),
    [
        ("none", ()),
        ("mlp", ("mlp.*",)),
        ("all", ("*",)),
        ("lstm.*", ("lstm.*",)),
        (["a", "b"], ("a", "b")),
    ],
)
def test_personal_is_an_alias_a_pattern_or_a_list_of_patterns(personal, patterns):
    assert Config(**{"personal": personal}).personal == patterns


@pytest.mark.parametrize(
    ("value", "lookback"), [(12, "12"), ("12", "12"), (" 3h ", "3h"), ("0.5d", "0.5d")]
)
def test_a_duration_is_a_time_or_a_number_of_intervals(value, lookback):
    assert Config(**{"lookback": value}).lookback == lookback


@pytest.mark.parametrize(
    ("value", "furthest"),
    [("up to 24h", "24h"), (" up  to 96 ", "96"), ("1h", None), (4, None), ("0.5d", None)],
)
def test_a_horizon_is_one_lead_or_all_leads_up_to_one(value, furthest):
    assert furthest_lead(Config(**{"horizon": value}).horizon) == furthest


@settings(deadline=None, max_examples=50)
@given(CONFIGS)
def test_a_stored_config_is_the_one_that_was_written(tmp_path_factory, values):
    config = Config(**values)
    path = tmp_path_factory.getbasetemp() / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert read_config(path) == config


def test_a_config_cannot_be_changed_after_it_is_made():
    config = Config()
    with pytest.raises(ValueError, match="frozen"):
        config.rounds = 3


def test_every_setting_says_what_it_means():
    assert [key for key, field in Config.model_fields.items() if not field.description] == []


def test_a_missing_file_is_refused_with_a_question(tmp_path):
    with pytest.raises(
        BadInput, match=r"config.toml cannot be read .*; is .* the folder of a run\?"
    ):
        read_config(tmp_path / "config.toml")


@pytest.mark.parametrize(
    "content", [b"rounds = ", b"rounds", b"\xff\xfe", b"rounds = 1\nrounds = 2"]
)
def test_a_file_that_is_not_toml_is_refused(tmp_path, content):
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"config.toml is not valid TOML .*; restore it"):
        read_config(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("rounds = 0", "rounds = 0: input"),
        ("round = 3", "did you mean 'rounds'"),
        ("[server]\nlr = 1", "server = "),
    ],
)
def test_a_file_with_an_impossible_config_is_refused_with_its_name(tmp_path, content, problem):
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises(BadInput, match=rf"config.toml: .*{problem}"):
        read_config(path)


def test_a_recipe_is_a_full_config_that_knows_its_name():
    assert DEFAULT_RECIPE in RECIPES
    assert all(make_recipe(name, {}).recipe == name for name in RECIPES)


def test_the_papers_recipe_has_the_papers_protocol():
    config = make_recipe("paper", {})
    assert (config.lookback, config.horizon, config.batch, config.hidden, config.mlp) == (
        "3h",
        "1h",
        16,
        25,
        (150, 75),
    )
    assert (config.split, config.personal, config.eval_every) == ((0.8, 0.1, 0.1), ("mlp.*",), 5)


def test_the_forecast_recipe_is_the_default_and_differs_from_the_papers_by_what_it_says():
    assert DEFAULT_RECIPE == "forecast"
    config, paper = make_recipe("forecast", {}), make_recipe("paper", {})
    assert (config.model, config.horizon, config.loss, config.personal) == (
        "analog",
        "up to 24h",
        "quantile",
        (),
    )
    assert (config.split, config.data, config.server, config.eval_every) == (
        paper.split,
        paper.data,
        paper.server,
        2,
    )


def test_values_given_to_a_recipe_replace_its_own():
    assert make_recipe("paper", {"rounds": 3, "personal": "none"}) == Config(
        **{"rounds": 3, "personal": ()}
    )


def test_a_recipe_refuses_unknown_keys_too():
    with pytest.raises(BadInput, match="did you mean 'rounds'"):
        make_recipe("paper", {"roundz": 3})


def test_an_unknown_recipe_is_refused_with_the_known_ones():
    with pytest.raises(BadInput, match="unknown recipe 'papre'; known recipes: forecast, paper"):
        make_recipe("papre", {})


@pytest.mark.parametrize("value", [True, False, None])
def test_what_is_judged_when_left_out_can_be_said_either_way(value):
    config = Config(cumulative=value)
    assert config.cumulative is value
    assert ("cumulative" in config.to_toml()) == (value is not None)
