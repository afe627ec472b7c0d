"""What the name of a column (or of a register) says: the quantity, its unit, and which part of an
interval or of a meter it is about.

The words are those of exports in the larger languages of Europe. A name that says nothing is that
of a meter, perhaps; nothing here looks at values.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from zoneinfo import available_timezones

# Units of electric energy and power, as headers write them.
UNITS = ("Wh", "kWh", "MWh", "GWh", "W", "kW", "MW", "GW")
_UNIT = {unit.lower(): unit for unit in UNITS} | {"kwhs": "kWh"}
_IN_WORDS = {"kilowatt hour": "kWh", "watt hour": "Wh", "kilowatt": "kW", "watts": "W"}
# What a number beside the readings is, and not a quantity that is measured.
FACT = "a fact beside the readings"
# In the order in which they are looked for; the first that is found says what a column is.
_QUANTITIES = {
    FACT: r"duration|post ?code|zip( ?code)?|plz|capacity|latitude|longitude|sq ?ft|floor ?area|"
    r"issues?|occupants|ptid|row ?quality|pas en minutes|num(ber)? of \w+|percent(age)?|version|"
    r"position|soc|state of charge|charge level",
    "price": r"costs?|prices?|charges?|amount|kosten|preis|prix|precio|costo|fees?|bill(ed|ing)?|"
    r"€|\$|£|eur(os?)?|usd|gbp|(ct|cents?) (per )?kwh|pence|rrp|lmp|spot\w*|cena|hind|hinta",
    "energy in a unit that is not read": r"ws|joules?",
    "gas": r"gas|erdgas|gaz|m3|m³|therms?|ccf|btu|mj",
    "water": r"water|wasser|eau|agua|acqua|lit(er|re)s?|gallons?",
    "heat": r"heat(?! ?pump)|heating|cooling|steam|chilled|warmte|wärme|fernwärme|kj|gj",
    "reactive or apparent energy": r"reactiv[aeo]|réactive|reatt?iv[aeo]|blind\w*|jalov\w*|"
    r"biern\w*|kvarh?|mvarh?|varh?|kvah?|mvah?|va|apparent|schein\w*",
    "voltage, current or the like": r"volt(age|s)?|spannung|tension|amp(ere|s)?|"
    r"current(?! ?(load|power|use|usage|demand))|"
    r"intensity|frequency|frequenz|hz|power ?factor|pf|cos ?phi|thd",
    "energy that is made where it is used": r"self ?(consum\w*|use)|eigenverbrauch|auto ?consum\w*|"
    r"autoconsom\w*",
    "returned energy": r"export(ed|s)?|return(ed|s)?|inject(ion|ed)?|feed ?in|fed ?in|einspeisung|"
    r"rück\w*|terug\w*|gelvr|injectie|immess\w*|excedent\w*|excédent|vertido|surplus|reverse|"
    r"received|to ?grid|generaci[oó]n|geração|egenproduktion|"
    r"generat(ion|ed|or)|product(ion|ie)|produc(ed|ción)|produz\w*|produit|produ[kc][tcs]\w*|"
    r"tuotanto|tootmine|võrku|oddan\w*|oddaj\w*|wprowadz\w*|dodáv\w*|výrob\w*|proizv\w*|termel\w*|"
    r"(vissza|be)táp\w*|inmatning|invoeding|retour|return\w*|vertid\w*|"
    r"erzeug\w*|opwek\w*|opgewekt|solar|pv|photovolta\w*|[12] 0 2 (8|29) \d|2 8 \d",
    "a forecast, or what is left of one": r"forecast(ed)?|prognos\w*|predict(ed|ion)|residual\w*|"
    r"pump(ed|speicher)|day ahead|max(imum)?|min(imum)?|peak ?demand|std|stddev",
    "part of the load": r"sub ?meter(ing)?( ?\d+)?",
    "weather": r"temp(erature|eratur|érature)?|t ?out|°c|°f|humid\w*|wind\w*|irradia\w*|radiation|"
    r"ghi|dni|dhi|cloud\w*|pressure|dew\w*|precip\w*|rain\w*|snow\w*|sunshine|weather",
    "consumption": r"cons[uo]m\w*|usage|used|use|energy|energie|énergie|loads?|demand|power|"
    r"puissance|potencia|potenza|leistung|verbr\w*|netzlast|last|offtake|afname|import(ed)?|"
    r"delivered|geliefert|bezug\w*|soutirage|electric(ity)?|elektr\w*|strom|stroom|électricité|"
    r"prelev\w*|pob(ór|ran\w*)|odběr|spotřeba|fogyaszt\w*|tüketim|potrošnja|võrgust|tarbimi\w*|"
    r"uttag|energi[ajn]+|elettric\w*|eléctric\w*|mængde|forbrug|forbruk|förbrukning|kulutus|"
    r"zużycie|ativa|gesamtverbrauch|wirkleistung|"
    r"wirkarbeit|kwh|mwh|gwh|wh|kw|mw|gw|watts?|y|[12] 0 1 (8|29) \d|1 8 \d",
}
_PATTERNS = {
    quantity: re.compile(rf"(?<![^\W_])({words})(?![^\W_])")
    for quantity, words in _QUANTITIES.items()
}
# Names that are nothing but a part of the date, or a number of the row.
_FACTS = re.compile(
    r"(year|month|day|hour|minute|week|weekday|quarter|season|dow|doy|day ?of ?(week|month|year)|"
    r"hour ?of ?(day|week)|week ?of ?year|is ?\w+|holiday|index|row|line|nr|no|count|num|rank)"
)
# Columns that hold one part of a date, in strptime's words.
PARTS = {
    "%Y": re.compile(r"year|yyyy|yr|jahr|jaar|année|annee|anno|año|ano|rok|år"),
    "%m": re.compile(r"month|mm|mon|monat|maand|mois|mese|mes|mês|månad|måned"),
    "%d": re.compile(r"day|dd|tag|dag|jour|giorno|d[ií]a|day of month|mday"),
    "%H": re.compile(r"hour|hr|hh|stunde|uur|heure|ora|hora|timme|time|hour ending|he|hour of day"),
    "%M": re.compile(r"minute|min|mi"),
}
_NAMES = re.compile(r"(.* )?(ids?|serial)|.* (number|no|nr|code)")
NOT_LOAD = (
    "energy in a unit that is not read",
    "price", "gas", "water", "heat", "reactive or apparent energy",
    "voltage, current or the like", "energy that is made where it is used", "returned energy",
)  # fmt: skip
# Words of quantities that also stand in the names of houses, firms and people, and words beside
# which they do not.
_ALSO_NAMES = re.compile(
    r"(?<![^\W_])(gas|water|heat(ing)?|steam|solar|pv|generator|wind|rain|snow|cloud|pressure|max|"
    r"min|amount|charge|received|surplus)(?![^\W_])"
)
_ATTRIBUTES = re.compile(
    r"\b(speed|direction|gusts?|cover|fall|depth|outdoor|indoor|outside|ambient|relative|point|"
    r"mean|average|meter|reading|total|flow|volume|rate|yield|panels?|roof|array|inverter|system|"
    r"demand|load|level|surface|chill|value|interval|actual|daily|hourly)\b"
)
# Codes of registers, as they stand in names and cells: A+, -P.
_CODES = {
    "consumption": re.compile(r"(?<![^\s(])(\+[AP]|[AP]\+)(?!\w)", re.I),
    "returned energy": re.compile(r"(?<![^\s(])([-−–][AP]|[AP][-−–])(?!\w)", re.I),
    "reactive or apparent energy": re.compile(r"(?<![^\s(])([-+][RQ]|[RQ][-+])(?!\w)", re.I),
}
_ZONE = re.compile(
    r"\b(Africa|America|Asia|Atlantic|Australia|Europe|Indian|Pacific)(/[A-Z][A-Za-z_-]+){1,2}"
)
_TOKEN = re.compile(r"(?<=[a-z])(?=[A-Z])|[_\-./()\[\]{}:;,]+|\s+")
_TARIFF = re.compile(
    r"\b(t[12]|tariff ?[12]|l[123]|phase ?[abc123]|low|high|normal|normaal|laag|"
    r"day|night|dag|nacht|tag|ht|nt|hp|hc|"
    r"mains? ?[ab12]|leg ?[ab12]|peak|off ?peak|shoulder|"
    r"f[123]|p[1-6]|18[12]|1 8 [12]|dutch users|users|rate ?\d|i{1,3})\b"
)


# Of several columns about one meter: what the house uses, before what comes from the grid.
_PREFERRED = (
    re.compile(r"\b(total|gesamt\w*)\b.*\b(consum\w*|usage|use|load|verbrauch)\b"),
    re.compile(
        r"\b(cons[uo]m\w*|usage|used?|loads?|demand|home|house|\w*verbr\w*|forbrug|mængde)\b"
    ),
    re.compile(r"\b(import\w*|delivered|bezug\w*|offtake|afname|soutirage)\b"),
    re.compile(r"^(?!.*\bnet\b)"),
    re.compile(r""),
)
_NUMBERED = re.compile(r"\b(house|home|building|meter|site|unit|apartment|flat) ?\d+\b")
_GENERAL = (
    "total", "active", "global", "value", "values", "hh", "per", "half", "hour", "hourly",
    "interval", "net", "reading", "readings", "meter", "state", "volume", "main", "mains",
    "column", "house", "home", "grid", "amount", "data", "sum", "real", "from", "utility",
    "registado", "registered", "measured", "gemessener", "in", "of", "actual", "forward", "w",
)  # fmt: skip


def plain(name: str) -> str:
    """A name as words: `START TIME`, `startTime` and `start_time` are alike."""
    units = re.sub(r"[kMG]?Wh?s?\b", lambda found: found[0].lower(), name)
    return " ".join(part for part in _TOKEN.split(units) if part).lower()


def _finder(words: str) -> Callable[[str], bool]:
    """Whether a name has some of these words in it."""
    pattern = re.compile(words)
    return lambda name: bool(pattern.search(plain(name)))


# Whether a column of times says that it is about beginnings.
is_start = _finder(
    r"\b(start\w*|begin\w*|from|von|ab|debut|début|inizio|desde|inicio|van|fra|dalle|início)\b"
)
# Whether a column of times says that it is about ends.
is_end = _finder(
    r"\b(end\w*|until|bis|to|fin|fine|hasta|tot|til|stop\w*|ending|he|finish|alle|fim)\b"
)
# Whether a column could number the periods of a day.
is_period = _finder(
    r"\b(settlement ?period|period\w*|sp|interval ?(number|no|id)?|half ?hour\w*|hh|"
    r"hour( ?ending)?|he|hr|hours?|stunde|uur|heure|hora|ora|quarter ?hour|slot)\b"
)
# Whether periods go by the clock on the wall: hour 2 comes twice when clocks go back.
is_hour = _finder(r"\b(hour\w*|he|hr|stunde|uur|heure|hora|ora|godzina|timme)\b")
# Whether a column could tell meters apart.
is_id = _finder(
    r"(\b|_)(\w*id|meters?|mpan|mprn|nmi|ean( code)?|esi ?id|pod|cups|prm|pdl|gsrn|msn|serial\w*|"
    r"house\w*|home\w*|building\w*|customer\w*|consumer\w*|account\w*|device|premises?|site\w*|"
    r"zähler\w*|zählpunkt\w*|målepunkt\w*|cpe|"
    r"malo|melo|contatore|contador|compteur|sensor|entity|client|series|"
    r"node|feeder|substation|apartment|unit ?no|name)(\b|_)"
)
# Whether a column is called like a time.
is_time = _finder(
    r"\b(ds|\w*time\w*|\w*date\w*|\w*stamps?|tstp|datum|zeit\w*|uhrzeit|"
    r"fecha|hora|heure|horodate\w*|"
    r"giorno|data|ora|tag|day|jour|dia|dt|ts|utc|\w*dato|zeitraum|\w*zeitpunkt|\w*period)\b"
)
# Whether a column says something about a reading and is none.
is_remark = _finder(
    r"^(?!.* id$).*\b(quality|status|flag|validation|"
    r"notes?|type|estimat\w*|descri\w*|comment|remark|reason|"
    r"method|tariff|season|weekday|day ?of ?week|holiday|is ?dst|dst|zone|region|version|"
    r"acorn\w*|std ?or ?tou|revision|read ?type|units?|uom|einheit|currency|address|service|"
    r"kvalitet|qualität|estado|calidad|metodo\w*|category)\b"
)
# Whether a column is called like any quantity.
is_value = _finder(
    r"\b(values?|readings?|quantity|wert|messwert|valor|valeur|valore|waarde|érték)\b"
)
# Whether a column numbers what follows the beginning of its period.
is_position = _finder(r"\b(pos|position)\b")
# Whether a column could tell the registers of a meter apart.
is_register = _finder(
    r"\b(register\w*|direction|flow\w*|channel\w*|obis|tariff|rate|commodity|"
    r"energy ?type|service|measure\w*|quantity|stream)\b"
)
# Whether a column is called like one of units.
is_unit = _finder(r"\b(\w*units?|uom|\w*einheit|\w*enhed|eenheid|unit[eéà]|unidad\w*|unidade\w*)\b")
# Whether a column of times says that it is in UTC.
is_utc = _finder(r"\b(utc|gmt)\b")
# Whether a name speaks of power and not of energy.
is_power = _finder(r"\b(power|\w*leistung|puissance|potencia|potenza|vermogen)\b")


@cache
def quantity_of(name: str) -> str:
    """The quantity that a name speaks of, or nothing.

    >>> quantity_of("Active energy Wh (A)"), quantity_of("Gas"), quantity_of("MT_001")
    ('consumption', 'gas', '')
    """
    words = plain(name)
    if _FACTS.fullmatch(words) or _NAMES.fullmatch(words):
        return FACT if _FACTS.fullmatch(words) else ""
    said = [quantity for quantity, pattern in _CODES.items() if pattern.search(name)]
    said += [quantity for quantity, pattern in _PATTERNS.items() if pattern.search(words)]
    return said[0] if said else ""


def is_doubtful(name: str) -> bool:
    """Whether a name that speaks of another quantity could be that of a meter.

    >>> is_doubtful("Gas station"), is_doubtful("Gas (m3)"), is_doubtful("Solar production A")
    (True, False, False)
    """
    words = plain(name)
    found = [quantity for quantity, pattern in _PATTERNS.items() if pattern.search(words)]
    rest, num = _ALSO_NAMES.subn(" ", words)
    if len(found) != 1 or num != 1 or unit_of(name) or _PATTERNS[found[0]].search(rest):
        return False
    return any(len(word) > 3 and word.isalpha() for word in _ATTRIBUTES.sub(" ", rest).split())


def choose_registers(values: Sequence[str]) -> list[str]:
    """The registers that count: consumption, or nothing in particular; energy before power."""
    taken = [value for value in values if quantity_of(value) not in (*NOT_LOAD, "weather")]
    energy = [value for value in taken if not is_power(value)]
    if all(re.fullmatch(r"[EBKQ]\d", value) for value in values):  # of Australian meters
        energy = [value for value in values if value.startswith("E")]
    return energy or taken


def unit_above(cells: Sequence[str]) -> str | None:
    """The one unit that is named above a table, as in `Unit: Wh`."""
    found = {_UNIT.get(re.split(r"[:=]", cell)[-1].strip().lower()) for cell in cells} - {None}
    return found.pop() if len(found) == 1 else None


def zone_of(text: str) -> str | None:
    """The time zone that a text names.

    >>> zone_of("Time Bucket (America/Los_Angeles)"), zone_of("and/or")
    ('America/Los_Angeles', None)
    """
    found = _ZONE.search(text) if "/" in text else None
    return found[0] if found and found[0] in available_timezones() else None


def prefer(names: Sequence[str]) -> list[str]:
    """Of columns about one meter, those that say best what it uses; energy before power."""
    names = [name for name in names if (unit_of(name) or "").endswith("h")] or names
    for pattern in _PREFERRED:
        if found := [name for name in names if pattern.search(plain(name))]:
            return found
    return []


def unit_of(text: str) -> str | None:
    """The unit of electricity in a name or a cell.

    >>> unit_of("AEP_MW"), unit_of("energy(kWh/hh)"), unit_of("W"), unit_of("m3")
    ('MW', 'kWh', 'W', None)
    """
    parts = re.split(r"[\s_\-./()\[\]{}:;,]+", text.lower())
    words = plain(text)
    said = (unit for name, unit in _IN_WORDS.items() if name in words)
    return next(filter(None, (*map(_UNIT.get, parts), *said)), None)


def is_general(name: str) -> bool:
    """Whether a name speaks of consumption and of no meter in particular.

    >>> is_general("Consumption (kWh)"), is_general("AEP_MW")
    (True, False)
    """
    words = plain(name)
    if _NUMBERED.search(words) or words.replace(" ", "").isdigit():
        return False
    rest = _PATTERNS["consumption"].sub(" ", words)
    return not [word for word in rest.split() if word not in _GENERAL and not word.isdigit()]


def without_tariff(name: str) -> str:
    """A name without what tells tariffs apart.

    >>> without_tariff("Energy T1 [kWh]") == without_tariff("Energy T2 [kWh]")
    True
    """
    return " ".join(_TARIFF.sub(" ", plain(name)).split())
