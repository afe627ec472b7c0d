"""Formats of exports that are known by name: what their columns are called, and what nothing in the
file says.

A profile is chosen by the names of the columns (shell-style patterns, case does not matter), and
fills in config fields that the user has left open; columns in it are patterns too. What a file says
itself needs no profile: most exports are read without one. A new one is a value in `PROFILES`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from plfl.config import Config, check_keys


@dataclass(frozen=True)
class Profile:
    """One known format."""

    name: str
    title: str
    columns: tuple[str, ...] = ()  # patterns, each of which some column matches; () for readers
    says: Mapping[str, Any] = field(default_factory=dict)  # config fields
    zone: str | None = None  # where such meters are, for an example


_NO_COVARIATES: dict[str, Any] = {"covariates": ()}
PROFILES = (
    Profile("nixtla", "long tables of Nixtla's libraries: unique_id, ds, y", ("ds", "y"),
            {"time_column": "ds", "load_column": "y"}),
    Profile("green_button_csv", "Green Button CSV of US utilities (PG&E, ComEd, SCE)",
            ("date", "start time", "end time", "*usage*"),
            {"time_column": ("date", "start time"), "load_column": "*usage*"} | _NO_COVARIATES,
            "America/Los_Angeles"),
    Profile("espi", "Green Button ESPI XML", zone="America/New_York"),
    Profile("nem12", "NEM12 of Australian meters (records 100, 200, 300, 400, 900)",
            zone="Australia/Brisbane"),
    Profile("dsmr", "DSMR-reader (Netherlands): tariffs and gas by hour or day",
            ("*start*", "electricity 1 (*", "electricity 2 (*"),
            {"load_column": ("electricity 1 (*", "electricity 2 (*"), "unit": "kWh"}
            | _NO_COVARIATES,
            "Europe/Amsterdam"),
    Profile("p1_monitor", "P1 Monitor (Netherlands)", ("timestamp", "verbr_kwh_x"),
            {"load_column": "verbr_kwh_x", "unit": "kWh"} | _NO_COVARIATES, "Europe/Amsterdam"),
    Profile("fluvius", "Fluvius (Belgium): a row per register",
            ("from (date)", "from (time)", "ean code", "register", "volume"),
            {"time_column": ("from (date)", "from (time)"), "id_column": "ean code",
             "load_column": "volume", "register_column": "register", "registers": ("Offtake*",)}
            | _NO_COVARIATES,
            "Europe/Brussels"),
    Profile("fluvius_nl", "Fluvius (Belgium), in Dutch",
            ("van (datum)", "van (tijdstip)", "ean-code", "register", "volume"),
            {"time_column": ("van (datum)", "van (tijdstip)"), "id_column": "ean-code",
             "load_column": "volume", "register_column": "register", "registers": ("Afname*",)}
            | _NO_COVARIATES,
            "Europe/Brussels"),
    Profile("enel", "Enel, e-distribuzione (Italy): a row per day", ("giorno", "00:00-00:15"),
            {"time_column": "giorno", "layout": "days", "unit": "kWh"}, "Europe/Rome"),
    Profile("lcl", "Low Carbon London: GMT all year, ends of half hours",
            ("lclid", "*energy(kwh/hh)*"),
            {"id_column": "lclid", "time_column": "tstp", "load_column": "*energy(kwh/hh)*",
             "stamp_timezone": "UTC", "timezone": "Europe/London", "stamps": "end"}
            | _NO_COVARIATES,
            "Europe/London"),
    Profile("lcl_tariffs", "Low Carbon London with tariffs: GMT all year, ends of half hours",
            ("lclid", "stdortou", "datetime", "kwh/hh*"),
            {"id_column": "lclid", "time_column": "datetime", "load_column": "kwh/hh*",
             "stamp_timezone": "UTC", "timezone": "Europe/London", "stamps": "end"}
            | _NO_COVARIATES,
            "Europe/London"),
    Profile("octopus", "Octopus Energy (United Kingdom)", ("consumption (kwh)", "start", "end"),
            {"time_column": "start", "load_column": "consumption (kwh)"} | _NO_COVARIATES,
            "Europe/London"),
    Profile("elexon", "Elexon settlement periods (Great Britain)",
            ("settlement*date*", "settlement*period*"),
            {"time_column": ("settlement*date*", "settlement*period*"),
             "timezone": "Europe/London"},
            "Europe/London"),
    Profile("smart_meter_texas", "Smart Meter Texas",
            ("esiid", "usage_date", "usage_start_time", "usage_kwh"),
            {"id_column": "esiid", "time_column": ("usage_date", "usage_start_time"),
             "load_column": "usage_kwh", "timezone": "America/Chicago"} | _NO_COVARIATES,
            "America/Chicago"),
    Profile("pjm", "hourly loads of PJM's zones: ends of hours in eastern local time",
            ("datetime", "[acdefnp][ejoukima]*_mw"),
            {"time_column": "datetime", "stamps": "end", "unit": "MW",
             "timezone": "America/New_York"}, "America/New_York"),
    Profile("smard", "SMARD (Germany): load of the grid",
            ("datum von", "datum bis", "*netzlast*"),
            {"time_column": "datum von", "load_column": "*netzlast*", "unit": "MWh",
             "timezone": "Europe/Berlin"} | _NO_COVARIATES,
            "Europe/Berlin"),
    Profile("home_assistant", "Home Assistant history: entity, state, time",
            ("entity_id", "state", "last_changed"),
            {"id_column": "entity_id", "time_column": "last_changed", "load_column": "state",
             "register_column": "entity_id"}
            | _NO_COVARIATES),
    Profile("shelly", "Shelly energy meters", ("*time*utc*", "*active energy*"),
            {"stamp_timezone": "UTC"} | _NO_COVARIATES, "Europe/Berlin"),
    Profile("shelly_3em", "Shelly Pro 3EM: Wh of three phases",
            ("timestamp", "a_total_act_energy", "b_total_act_energy", "c_total_act_energy"),
            {"time_column": "timestamp", "unit": "Wh",
             "load_column": tuple(f"{phase}_total_act_energy" for phase in "abc")}
            | _NO_COVARIATES, "Europe/Berlin"),
    Profile("enphase", "Enphase Enlighten", ("date/time", "*energy consumed*"),
            {"time_column": "date/time", "load_column": "*energy consumed*"} | _NO_COVARIATES,
            "America/Los_Angeles"),
    Profile("enedis", "Enedis (France): mean W, ends of intervals", ("horodate", "valeur"),
            {"time_column": "horodate", "load_column": "valeur", "unit": "W", "stamps": "end",
             "timezone": "Europe/Paris"} | _NO_COVARIATES, "Europe/Paris"),
    Profile("n3rgy", "n3rgy (Great Britain): UTC", ("timestamp", "primaryvalue"),
            {"time_column": "timestamp", "load_column": "primaryvalue", "stamp_timezone": "UTC",
             "timezone": "Europe/London", "unit": "kWh"} | _NO_COVARIATES, "Europe/London"),
    Profile("ausgrid", "Ausgrid solar homes: a row per day; CL and GC are used, GG is generated",
            ("customer", "consumption category", "date", "0:30", "0:00"),
            {"id_column": "customer", "time_column": "date", "layout": "days", "unit": "kWh",
             "register_column": "consumption category", "registers": ("CL", "GC"),
             "timezone": "Australia/Sydney"}, "Australia/Sydney"),
    Profile("uci_load_diagrams", "UCI electricity load diagrams (Portugal): mean kW, ends",
            ("mt_001", "mt_002"),
            {"layout": "wide", "unit": "kW", "stamps": "end", "timezone": "Europe/Lisbon"},
            "Europe/Lisbon"),
    Profile("pecan_street", "Pecan Street Dataport: mean kW", ("dataid", "local*", "use"),
            {"id_column": "dataid", "time_column": "local*", "load_column": "use", "unit": "kW"}
            | _NO_COVARIATES, "America/Chicago"),
    Profile("pecan_street_grid", "Pecan Street Dataport without a total: mean kW at the grid",
            ("dataid", "local*", "grid"),
            {"id_column": "dataid", "time_column": "local*", "load_column": "grid", "unit": "kW"}
            | _NO_COVARIATES, "America/Chicago"),
    Profile("aemo", "demand of AEMO's regions (Australia): MW, ends by Brisbane's clock",
            ("region", "settlementdate", "totaldemand"),
            {"time_column": "settlementdate", "id_column": "region", "load_column": "totaldemand",
             "unit": "MW", "stamps": "end", "stamp_timezone": "Australia/Brisbane"}
            | _NO_COVARIATES, "Australia/Sydney"),
    Profile("refit", "REFIT (Great Britain): W of the house and of appliances",
            ("unix", "aggregate", "appliance1"),
            {"time_column": "unix", "load_column": "aggregate", "unit": "W",
             "timezone": "Europe/London"} | _NO_COVARIATES, "Europe/London"),
    Profile("nyiso", "loads of NYISO's zones: MW", ("time stamp", "name", "ptid", "*load*"),
            {"time_column": "time stamp", "id_column": "name", "load_column": "*load*",
             "unit": "MW", "timezone": "America/New_York"} | _NO_COVARIATES, "America/New_York"),
    Profile("ercot", "hourly loads of ERCOT's zones: MW, ends of hours",
            ("hour*ending", "coast", "east"),
            {"time_column": "hour*ending", "stamps": "end", "unit": "MW",
             "timezone": "America/Chicago"} | _NO_COVARIATES, "America/Chicago"),
    Profile("opsd", "Open Power System Data: loads of countries in MW",
            ("utc_timestamp", "*_load_actual_entsoe*"),
            {"time_column": "utc_timestamp", "unit": "MW"} | _NO_COVARIATES, "Europe/Berlin"),
    Profile("uci_household", "UCI individual household power (France): mean kW per minute",
            ("date", "time", "global_active_power", "global_intensity"),
            {"time_column": ("date", "time"), "load_column": "global_active_power", "unit": "kW",
             "timezone": "Europe/Paris"} | _NO_COVARIATES,
            "Europe/Paris"),
)  # fmt: skip
BY_NAME = {profile.name: profile for profile in PROFILES}


def find_profile(names: Sequence[str], config: Config) -> Profile | None:
    """The format that is asked for, or else the one with the most columns that all are there."""
    if config.format is not None:
        check_keys([config.format], BY_NAME, "unknown format")
        return BY_NAME[config.format]
    fitting = [
        profile
        for profile in PROFILES
        if profile.columns and all(match(pattern, names) for pattern in profile.columns)
    ]
    return max(fitting, key=lambda profile: len(profile.columns), default=None)


def match(pattern: str, names: Sequence[str]) -> list[str]:
    """The columns that a pattern means; one that stands there as it is means itself."""
    if pattern in names:
        return [pattern]
    return [name for name in names if fnmatchcase(name.lower(), pattern.lower())]


def fill_in(config: Config, profile: Profile | None, names: Sequence[str]) -> Config:
    """The config with what a profile says where nothing else is said; patterns become columns."""
    says = {
        key: _as_columns(value, names) if key.endswith("_column") else value
        for key, value in (profile.says if profile else {}).items()
        if getattr(config, key) == Config.model_fields[key].default
    }
    return config.model_copy(update=says) if says else config


def _as_columns(value: str | tuple[str, ...], names: Sequence[str]) -> Any:
    """The columns that patterns mean, the first of each; None if there is none."""
    patterns = (value,) if isinstance(value, str) else value
    found = tuple(name for pattern in patterns for name in match(pattern, names)[:1])
    return found[0] if len(found) == 1 else found or None
