"""The doctor as a whole: what it says about several sources, and how `plfl check` shows it."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from data.planted import clean, diagnose, drop, local, put, write, write_text
from plfl.cli.app import app
from plfl.config import IGNORABLE, Config
from plfl.data.generated import generate
from plfl.data.rules import LEVELS, RULES
from plfl.errors import BadInput, in_shell
from plfl.runs.doctor import examine

CHICAGO = "timezone=America/Chicago"


def check(*args: str):
    return CliRunner().invoke(app, ["check", *args])


def many_faults():
    """A gap, conflicting readings in both, and a long gap."""
    frame = clean(2)
    others = frame.loc[[100, 101, 2000]].assign(y=1.5)
    return pd.concat([drop(frame, 300, *range(1500, 1600)), others], ignore_index=True)


def test_findings_are_grouped_by_rule_the_gravest_first(tmp_path):
    groups = diagnose(write(tmp_path, many_faults())).groups()
    assert [(group.first.code, group.count, group.num_clients) for group in groups] == [
        ("PLF104", 3, 2),
        ("PLF105", 1, 1),
        ("PLF106", 1, 1),
    ]
    levels = [LEVELS.index(group.first.rule.level) for group in groups]
    assert levels == sorted(levels)


def test_the_first_place_of_a_group_is_the_first_in_the_file(tmp_path):
    place = diagnose(write(tmp_path, many_faults())).groups()[0].first.place
    assert (place.client, place.row, place.line) == ("b001", 2588, 2589)


def test_a_refused_client_is_not_among_those_that_take_part(tmp_path):
    frame = clean(3)
    frame.loc[100, "y"] = np.inf
    diagnosis = diagnose(write(tmp_path, frame))
    assert (diagnosis.refused, diagnosis.ids, diagnosis.is_usable) == (
        ("b001",),
        ("b002", "b003"),
        False,
    )


def test_what_is_repaired_or_noted_leaves_the_data_usable(tmp_path):
    diagnosis = diagnose(write(tmp_path, drop(clean(), 300, *range(500, 600))))
    assert [finding.code for finding in diagnosis.findings] == ["PLF105", "PLF106"]
    assert diagnosis.is_usable


def test_a_file_that_cannot_be_read_is_a_finding_too(tmp_path):
    diagnosis = examine([write_text(tmp_path, "")], Config())
    assert ([finding.code for finding in diagnosis.findings], diagnosis.panel) == (["PLF301"], None)
    assert not diagnosis.is_usable


def test_the_doctor_reads_several_sources(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir(), second.mkdir()
    frame = clean(2)
    paths = [
        write(first, drop(frame[:1344], 5)),
        write(second, drop(frame[1344:].reset_index(drop=True), 7)),
    ]
    diagnosis = examine(paths, Config(timezone="America/Chicago"))
    assert [(f.code, f.client, f.place.file) for f in diagnosis.findings] == [
        ("PLF105", "b001", paths[0]),
        ("PLF105", "b002", paths[1]),
    ]


def test_the_json_holds_everything_and_no_number_that_json_does_not_know(tmp_path):
    path = write(tmp_path, many_faults(), "parquet")
    result = check(path, "--set", CHICAGO, "--json")
    facts = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert (result.exit_code, facts["num_refused"], facts["num_clients"], facts["is_usable"]) == (
        2,
        2,
        0,
        False,
    )
    first = facts["findings"][0]
    assert first == {
        "code": "PLF104",
        "title": "conflicting readings",
        "level": "refused",
        "count": 2,
        "place": {
            "file": path,
            "row": 2588,
            "column": "y",
            "client": "b001",
            "time": "2018-01-02T07:00:00Z",
        },
        "detail": f"2 stamps with several values, first {clean(1).y[100]:g} and 1.5",
        "fix": "correct the file, or choose: --set duplicates=first (or last, mean)",
    }


def test_clean_data_is_said_to_be_clean_with_status_0(tmp_path):
    result = check(write(tmp_path, clean()), "--set", CHICAGO)
    assert result.exit_code == 0
    assert "2 clients can take part · 1,344 x 15min" in result.stdout
    assert "Nothing found." in result.stdout


def test_the_table_shows_code_count_first_place_and_fix(tmp_path):
    result = check(write(tmp_path, many_faults()), "--set", CHICAGO)
    text = re.sub(r"\s+", " ", result.stdout)
    assert result.exit_code == 2
    for part in (
        "PLF104",
        "conflicting readings",
        "meters.csv, line 2589, column 'y', client b001",
        "duplicates=first",
    ):
        assert part in text
    assert "A run would leave out 2: b001, b002" in text


def test_naive_stamps_end_with_status_2_and_the_way_out(tmp_path):
    result = check(write(tmp_path, local(clean())))
    assert result.exit_code == 2
    assert "--set timezone=America/Chicago" in result.stdout


def test_settings_that_repair_are_settings_of_check_too(tmp_path):
    frame = clean()
    path = write(tmp_path, pd.concat([frame, frame[50:51].assign(y=1.0)], ignore_index=True))
    assert check(path, "--set", CHICAGO).exit_code == 2
    assert check(path, "--set", CHICAGO, "--set", "duplicates=last").exit_code == 0


@pytest.mark.parametrize("code", RULES)
def test_every_rule_explains_itself(code):
    result = check("--explain", code.lower())
    rule = RULES[code]
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{code} {rule.title} ({rule.level})")
    assert re.sub(r"\s+", " ", in_shell(rule.fix)) in re.sub(r"\s+", " ", result.stdout)


def test_every_rule_has_a_code_of_its_family_a_meaning_and_a_fix():
    for code, rule in RULES.items():
        assert re.fullmatch(r"PLF[123]\d\d", code)
        assert rule.level in LEVELS
        assert all(text and not text.endswith(" ") for text in (rule.title, rule.why, rule.fix))
    assert {RULES[code].level for code in IGNORABLE} <= {"refused", "repaired"}


def test_all_rules_are_listed_as_json():
    listed = json.loads(check("--explain", "all", "--json").stdout)["rules"]
    assert [rule["code"] for rule in listed] == list(RULES)


def test_an_unknown_code_is_refused_with_the_nearest():
    error = check("--explain", "PLF299").exception
    assert isinstance(error, BadInput)
    assert re.search(r"there is no rule 'PLF299'; did you mean PLF\d+\?", str(error))


def test_nothing_to_check_is_refused():
    assert "nothing to check" in str(check().exception)


def test_only_judgements_can_be_overruled():
    with pytest.raises(
        BadInput, match="only PLF205, PLF207, PLF209 are judgements that can be overruled"
    ):
        Config(ignore=["PLF101"])


def test_a_finding_reads_as_one_sentence_with_place_and_fix(tmp_path):
    path = write(tmp_path, put(clean(), 700, y=-2.5).astype({"y": float}))
    [finding] = diagnose(path).findings
    assert str(finding) == (
        "PLF203 negative values: meters.csv, line 702, column 'y', client b001, "
        "2018-01-08T13:00:00Z: 1 reading, the lowest -2.5 kWh; correct the readings, or, if "
        "the meter does export: allow_export=True"
    )
    assert finding.in_words.endswith("if the meter does export: ‹allow_export=true›")
    assert finding.reason.endswith("if the meter does export: --set allow_export=true")


def test_an_interval_that_the_forecast_cannot_have_is_a_finding():
    found = examine("generated:2?days=30", Config(interval="1d")).findings
    assert [f.code for f in found] == ["PLF114"]
    assert "is not a multiple of the data's interval (1440min)" in found[0].detail


def test_a_plus_behind_a_path_is_a_plus(tmp_path):
    panel = generate(1, days=20)
    stamps = np.datetime_as_string(panel.times() - np.timedelta64(6, "h"))
    rows = "\n".join(f"{stamp},{load}" for stamp, load in zip(stamps, panel.load[0], strict=True))
    (tmp_path / "one.csv").write_text(f"ds,y\n{rows}\n")
    source = f"{tmp_path}/one.csv?timezone=America/Chicago&stamp_timezone=Etc/GMT+6"
    assert examine(source, Config()).panel.start == panel.start
