"""What the name of a column (or of a register) says: the quantity, its unit, and which part of an
interval or of a meter it is about.

The words are those of exports in English, German, Dutch, French, Italian, Spanish,
Portuguese and Danish. A name that
says nothing is that of a meter, perhaps; nothing here looks at values.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

# Units of electric energy and power, as headers write them.
UNITS = ("Wh", "kWh", "MWh", "GWh", "W", "kW", "MW", "GW")
_UNIT = {unit.lower(): unit for unit in UNITS}
# What a number beside the readings is, and not a quantity that is measured.
FACT = "a fact beside the readings"
# In the order in which they are looked for; the first that is found says what a column is.
_QUANTITIES = {
    FACT: r"duration|post ?code|zip( ?code)?|plz|capacity|latitude|longitude|sq ?ft|floor ?area|"
    r"issues?|occupants|ptid|row ?quality|pas en minutes|num(ber)? of \w+",
    "price": r"costs?|prices?|charges?|amount|kosten|preis|prix|precio|costo|fees?|bill(ed|ing)?|"
    r"€|\$|£|eur(os?)?|usd|gbp|(ct|cents?) (per )?kwh|pence",
    "gas": r"gas|erdgas|gaz|m3|m³|therms?|ccf|btu|mj",
    "water": r"water|wasser|eau|agua|acqua|lit(er|re)s?|gallons?",
    "heat": r"heat(?! ?pump)|heating|cooling|steam|chilled|warmte|wärme|fernwärme|kj|gj",
    "reactive or apparent energy": r"reactive|réactive|blind\w*|kvarh?|mvarh?|varh?|kvah?|mvah?|va|"
    r"apparent|schein\w*",
    "voltage, current or the like": r"volt(age|s)?|spannung|tension|amp(ere|s)?|"
    r"current(?! ?(load|power|use|usage|demand))|"
    r"intensity|frequency|frequenz|hz|power ?factor|pf|cos ?phi|thd",
    "energy that is made where it is used": r"self ?(consum\w*|use)|eigenverbrauch|auto ?consum\w*|"
    r"autoconsom\w*",
    "returned energy": r"export(ed|s)?|return(ed|s)?|inject(ion|ed)?|feed ?in|fed ?in|einspeisung|"
    r"rück\w*|terug\w*|gelvr|injectie|immess\w*|excedent\w*|excédent|vertido|surplus|reverse|"
    r"received|to ?grid|generaci[oó]n|geração|egenproduktion|"
    r"generat(ion|ed|or)|product(ion|ie)|produc(ed|ción)|produz\w*|produit|"
    r"erzeug\w*|opwek\w*|opgewekt|solar|pv|photovolta\w*|[12] 0 2 (8|29) \d|2 8 \d",
    "a forecast, or what is left of one": r"forecast(ed)?|prognos\w*|predict(ed|ion)|residual\w*|"
    r"pump(ed|speicher)|day ahead|max(imum)?|min(imum)?|peak ?demand|std|stddev",
    "part of the load": r"sub ?meter(ing)?( ?\d+)?",
    "weather": r"temp(erature|eratur|érature)?|t ?out|°c|°f|humid\w*|wind\w*|irradia\w*|radiation|"
    r"ghi|dni|dhi|cloud\w*|pressure|dew\w*|precip\w*|rain\w*|snow\w*|sunshine|weather",
    "consumption": r"consum\w*|usage|used|use|energy|energie|énergie|loads?|demand|power|"
    r"puissance|potencia|potenza|leistung|verbr\w*|netzlast|last|offtake|afname|import(ed)?|"
    r"delivered|geliefert|bezug\w*|soutirage|electric(ity)?|elektr\w*|strom|stroom|électricité|"
    r"elettric\w*|eléctric\w*|mængde|forbrug|forbruk|förbrukning|kulutus|zużycie|"
    r"ativa|gesamtverbrauch|wirkleistung|"
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
NOT_LOAD = (
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
# Codes of registers, as they stand in cells.
_CODES = {
    "a+": "consumption", "+a": "consumption", "p+": "consumption", "+p": "consumption",
    "a-": "returned energy", "-a": "returned energy", "p-": "returned energy",
    "-p": "returned energy", "r+": "reactive or apparent energy",
    "r-": "reactive or apparent energy", "q+": "reactive or apparent energy",
    "q-": "reactive or apparent energy",
}  # fmt: skip
_START = re.compile(
    r"\b(start\w*|begin\w*|from|von|ab|debut|début|inizio|desde|inicio|van|fra|dalle|início)\b"
)
_END = re.compile(
    r"\b(end\w*|until|bis|to|fin|fine|hasta|tot|til|stop\w*|ending|he|finish|alle|fim)\b"
)
_PERIOD = re.compile(
    r"\b(settlement ?period|period\w*|sp|interval ?(number|no|id)?|half ?hour\w*|hh|"
    r"hour( ?ending)?|he|hr|hours?|stunde|uur|heure|hora|ora|quarter ?hour|slot)\b"
)
_HOUR = re.compile(r"\b(hour\w*|he|hr|stunde|uur|heure|hora|ora|godzina|timme)\b")
_ID = re.compile(
    r"(\b|_)(\w*id|meters?|mpan|mprn|nmi|ean( code)?|esi ?id|pod|cups|prm|pdl|gsrn|msn|serial\w*|"
    r"house\w*|home\w*|building\w*|customer\w*|consumer\w*|account\w*|device|premises?|site\w*|"
    r"zähler\w*|zählpunkt\w*|målepunkt\w*|cpe|"
    r"malo|melo|contatore|contador|compteur|sensor|entity|client|series|"
    r"node|feeder|substation|apartment|unit ?no|name)(\b|_)"
)
_TIME = re.compile(
    r"\b(ds|\w*time\w*|\w*date\w*|\w*stamps?|tstp|datum|zeit\w*|uhrzeit|"
    r"fecha|hora|heure|horodate\w*|"
    r"giorno|data|ora|tag|day|jour|dia|dt|ts|utc|\w*dato|zeitraum|\w*zeitpunkt|\w*period)\b"
)
_REMARK = re.compile(
    r"\b(quality|status|flag|validation|notes?|type|estimat\w*|descri\w*|comment|remark|reason|"
    r"method|tariff|season|weekday|day ?of ?week|holiday|is ?dst|dst|zone|region|version|"
    r"acorn\w*|std ?or ?tou|revision|read ?type|units?|uom|einheit|currency|address|service|"
    r"kvalitet|qualität|estado|calidad|metodo\w*|category)\b"
)
_REGISTER = re.compile(
    r"\b(register\w*|direction|flow\w*|channel\w*|obis|tariff|rate|commodity|"
    r"energy ?type|service|measure\w*|quantity|stream)\b"
)
_UNIT_COLUMN = re.compile(
    r"\b(\w*units?|uom|\w*einheit|\w*enhed|eenheid|unit[eéà]|unidad\w*|unidade\w*)\b"
)
_UTC = re.compile(r"\b(utc|gmt)\b")
_TOKEN = re.compile(r"(?<=[a-z])(?=[A-Z])|[_\-./()\[\]{}:;,]+|\s+")
_TARIFF = re.compile(
    r"\b(t[12]|tariff ?[12]|l[123]|phase ?[abc123]|low|high|normal|normaal|laag|"
    r"day|night|dag|nacht|tag|ht|nt|hp|hc|"
    r"peak|off ?peak|shoulder|f[123]|p[1-6]|18[12]|1 8 [12]|dutch users|users|rate ?\d|i{1,3})\b"
)


# Of several columns about one meter: what the house uses, before what comes from the grid.
_PREFERRED = (
    re.compile(r"\b(total|gesamt\w*)\b.*\b(consum\w*|usage|use|load|verbrauch)\b"),
    re.compile(r"\b(consum\w*|usage|used?|loads?|demand|\w*verbr\w*|forbrug|mængde)\b"),
    re.compile(r"\b(import\w*|delivered|bezug\w*|offtake|afname|soutirage)\b"),
    re.compile(r""),
)
_NUMBERED = re.compile(r"\b(house|home|building|meter|site|unit|apartment|flat) ?\d+\b")
_POWER = re.compile(r"\b(power|\w*leistung|puissance|potencia|potenza|vermogen)\b")
_GENERAL = (
    "total", "active", "global", "value", "values", "hh", "per", "half", "hour", "hourly",
    "interval", "net", "reading", "readings", "meter", "state", "volume",
    "column", "house", "grid", "amount", "data", "sum", "real", "from", "utility",
    "registado", "registered", "measured", "gemessener", "in", "of", "actual", "forward", "w",
)  # fmt: skip


class Meaning(NamedTuple):
    """What a name says."""

    quantity: str  # of _QUANTITIES, or nothing
    unit: str | None


def plain(name: str) -> str:
    """A name as words: `START TIME`, `startTime` and `start_time` are alike."""
    units = re.sub(r"[kMG]?Wh?\b", lambda found: found[0].lower(), name)
    return " ".join(part for part in _TOKEN.split(units) if part).lower()


@cache
def meaning_of(name: str) -> Meaning:
    """The quantity and the unit that a name speaks of.

    >>> meaning_of("Active energy Wh (A)"), meaning_of("Gas"), meaning_of("MT_001")
    (Meaning(quantity='consumption', unit='Wh'), Meaning(quantity='gas', unit=None), \
Meaning(quantity='', unit=None))
    """
    words = plain(name)
    if _FACTS.fullmatch(words):
        return Meaning(FACT, None)
    found = (quantity for quantity, pattern in _PATTERNS.items() if pattern.search(words))
    return Meaning(next(found, ""), unit_of(name))


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


def register_of(value: str) -> str:
    """The quantity that the value of a column of registers speaks of, by words or by its code."""
    return _CODES.get(value.strip().lower()) or meaning_of(value).quantity


def choose_registers(values: Sequence[str]) -> list[str]:
    """The registers that count: consumption, or nothing in particular; energy before power."""
    taken = [value for value in values if register_of(value) not in (*NOT_LOAD, "weather")]
    energy = [value for value in taken if not is_power(value)]
    return energy or taken


def unit_above(cells: Sequence[str]) -> str | None:
    """The one unit that is named above a table, as in `Unit: Wh`."""
    last = (re.split(r"[:=]", cell)[-1].strip().lower() for cell in cells)
    found = {_UNIT[text] for text in last if text in _UNIT}
    return found.pop() if len(found) == 1 else None


def prefer(names: Sequence[str]) -> list[str]:
    """Of columns about one meter, those that say best what it uses; energy before power."""
    energy = [name for name in names if (unit_of(name) or "").endswith("h")]
    names = energy or names
    for pattern in _PREFERRED:
        if found := [name for name in names if pattern.search(plain(name))]:
            return found
    return []


def unit_of(text: str) -> str | None:
    """The unit of electricity in a name or a cell.

    >>> unit_of("AEP_MW"), unit_of("energy(kWh/hh)"), unit_of("W"), unit_of("m3")
    ('MW', 'kWh', 'W', None)
    """
    for part in re.split(r"[\s_\-./()\[\]{}:;,]+", text):
        if unit := _UNIT.get(part.lower()):
            return unit
    words = plain(text)
    return next(
        (
            unit
            for word, unit in (
                ("kilowatt hour", "kWh"),
                ("watt hour", "Wh"),
                ("kilowatt", "kW"),
                ("watts", "W"),
            )
            if word in words
        ),
        None,
    )


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


def is_power(name: str) -> bool:
    """Whether a name speaks of power and not of energy."""
    return bool(_POWER.search(plain(name)))


def is_start(name: str) -> bool:
    """Whether a column of times says that it is about beginnings."""
    return bool(_START.search(plain(name)))


def is_end(name: str) -> bool:
    """Whether a column of times says that it is about ends."""
    return bool(_END.search(plain(name)))


def is_period(name: str) -> bool:
    """Whether a column could number the periods of a day."""
    return bool(_PERIOD.search(plain(name)))


def is_hour(name: str) -> bool:
    """Whether periods go by the clock on the wall: hour 2 comes twice when clocks go back."""
    return bool(_HOUR.search(plain(name)))


def is_id(name: str) -> bool:
    """Whether a column could tell meters apart."""
    return bool(_ID.search(plain(name)))


def is_time(name: str) -> bool:
    """Whether a column is called like a time."""
    return bool(_TIME.search(plain(name)))


def is_remark(name: str) -> bool:
    """Whether a column says something about a reading and is none."""
    return bool(_REMARK.search(plain(name)))


def is_register(name: str) -> bool:
    """Whether a column could tell the registers of a meter apart."""
    return bool(_REGISTER.search(plain(name)))


def is_unit(name: str) -> bool:
    """Whether a column is called like one of units."""
    return bool(_UNIT_COLUMN.search(plain(name)))


def is_utc(name: str) -> bool:
    """Whether a column of times says that it is in UTC."""
    return bool(_UTC.search(plain(name)))


def without_tariff(name: str) -> str:
    """A name without what tells tariffs apart.

    >>> without_tariff("Energy T1 [kWh]") == without_tariff("Energy T2 [kWh]")
    True
    """
    return " ".join(_TARIFF.sub(" ", plain(name)).split())
