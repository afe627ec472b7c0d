"""No control character reaches a terminal or a log, wherever it came from."""

import io
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from plfl.deploy.programs import provision
from plfl.deploy.programs.commands import app
from plfl.deploy.programs.supervise import logged
from plfl.errors import BadInput, PlainFormatter, in_python, in_shell, plain, plain_lines

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e\u2028end"


def is_harmless(text):
    return all(each.isprintable() or each == "\n" for each in text)


@given(st.text())
def test_every_text_becomes_printable_and_printable_ones_stay(text):
    assert plain(text).isprintable()
    assert (plain(text) == text) == text.isprintable()
    assert is_harmless(plain_lines(text))


@given(st.text(), st.text())
def test_different_texts_with_control_characters_stay_different(one, other):
    if "\\" not in one + other:
        assert (plain(one) == plain(other)) == (one == other)


def test_a_log_record_is_one_line_and_its_traceback_is_harmless():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter("%(levelname)s %(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning("%s\nERROR forged", EVIL)
    assert stream.getvalue().count("\n") == 1
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("failed")
    assert is_harmless(stream.getvalue())
    assert "\\x1b]0;owned\\x07" in stream.getvalue()


def test_what_a_program_logs_of_others_is_harmless_on_the_terminal_and_in_its_file(
    tmp_path, capsys
):
    with logged(tmp_path):
        logging.getLogger("plfl").warning("%s refuses: %s", EVIL, EVIL)
        logging.getLogger("plfl.raw").info("superlink: %s", EVIL)
    assert is_harmless(capsys.readouterr().err)
    assert is_harmless((tmp_path / "log.txt").read_text())


def test_commands_print_ids_and_names_harmlessly(tmp_path):
    evil = "house\x1b[2J\u202e7"
    made = provision.init(tmp_path / "pilot", ["a"], host="127.0.0.1")
    for command in (
        ["add-client", str(made.folder), evil],
        ["revoke-client", str(made.folder), evil],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0
        assert is_harmless(done.output)
        assert "house\\x1b[2J\\u202e7" in done.output


@pytest.mark.e2e
def test_an_error_of_the_command_line_is_harmless(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "plfl", "federation", "server", str(tmp_path / f"no{EVIL}.toml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert is_harmless(done.stderr)
    assert "cannot be read" in done.stderr


def test_an_error_says_what_and_the_way_out_apart():
    error = BadInput("no time zone is known", "say where: ‹timezone=Europe/Rome›, or ‹--out DIR›")
    assert error.what == "no time zone is known"
    assert str(error) == "no time zone is known; say where: timezone='Europe/Rome', or out=DIR"
    assert in_shell(error.in_words).endswith("--set timezone=Europe/Rome, or --out DIR")


def test_a_setting_that_a_shell_would_take_apart_is_quoted():
    assert in_shell("‹time_format=%d/%m %H›") == "--set 'time_format=%d/%m %H'"


@pytest.mark.parametrize(
    ("marked", "written"),
    [("‹rounds=80›", "rounds=80"), ("‹cumulative=true›", "cumulative=True"), ("‹--init›", "init")],
)
def test_python_is_told_an_argument_it_can_pass(marked, written):
    assert in_python(marked) == written
