"""The vocabulary of the demo corpus as tables; irregular forms are written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Gender = Literal["m", "n", "f"]

# Kinds of nouns: P person, A animal, F countable food, M uncountable food, D drink, R something to read, T thing,
# O something to open, I musical instrument, V vehicle, L place.


@dataclass(frozen=True)
class Noun:
    """A noun of both languages; ``english`` may be several words, of which the last one is inflected."""

    english: str
    english_plural: str
    german: str
    gender: Gender
    german_plural: str
    kind: str
    weak: bool = False  # n-declension: der Student, den Studenten

    @property
    def mass(self) -> bool:
        """True for uncountable nouns, without plural and indefinite article."""
        return self.kind in "MD"


@dataclass(frozen=True)
class Adjective:
    """An adjective: German ``stem`` takes the endings, ``german`` is the predicative form."""

    english: str
    english_comparative: str | None  # None: "more ..."
    german: str
    stem: str
    comparative: str
    kinds: str  # kinds of nouns that it can modify


@dataclass(frozen=True)
class Verb:
    """A verb with its frame: kinds of nouns for subject, accusative object and dative object ("": none)."""

    base: str
    past: str
    participle: str
    gerund: str
    german: str  # infinitive without a separable prefix
    prefix: str  # separable prefix, or ""
    german_third: str | None  # third person singular where it is irregular
    german_participle: str
    auxiliary: Literal["haben", "sein"]
    particle: str = ""  # English preposition that belongs to the verb: look for
    subject: str = "P"
    accusative: str = ""
    dative: str = ""
    adverbial: str = ""  # "place" or "direction", if the verb takes one
    stative: bool = False  # no progressive


@dataclass(frozen=True)
class Modifier:
    """The first part of a compound: its English word, the German form with its linking element, kinds of heads."""

    english: str
    german: str
    kinds: str


def _regular_plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh", "z")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _nouns(table: str) -> dict[str, tuple[Noun, ...]]:
    """Rows ``english[/plural] German gender Plural`` under headings ``kind:``; ``+`` after the gender: n-declension."""
    kinds: dict[str, list[Noun]] = {}
    kind = ""
    for row in table.strip().split("\n"):
        name, _, entries = row.partition(":")
        kind = name.strip()
        for entry in entries.split(","):
            word, german, gender, german_plural = entry.split()
            english, _, plural = word.partition("/")
            weak = gender.endswith("+")
            noun = Noun(
                english, plural or _regular_plural(english), german, _gender(gender[0]), german_plural, kind, weak
            )
            kinds.setdefault(kind, []).append(noun)
    return {kind: tuple(nouns) for kind, nouns in kinds.items()}


def _gender(letter: str) -> Gender:
    if letter == "m":
        return "m"
    return "n" if letter == "n" else "f"


NOUNS = _nouns(
    """
P: man/men Mann m Männer, woman/women Frau f Frauen, child/children Kind n Kinder, teacher Lehrer m Lehrer
P: girl Mädchen n Mädchen, boy Junge m+ Jungen, friend Freund m Freunde, sister Schwester f Schwestern
P: brother Bruder m Brüder, doctor Arzt m Ärzte, neighbour Nachbar m+ Nachbarn, mother Mutter f Mütter
P: father Vater m Väter, student Student m+ Studenten, daughter Tochter f Töchter, son Sohn m Söhne
P: aunt Tante f Tanten, uncle Onkel m Onkel, farmer Bauer m+ Bauern, queen Königin f Königinnen, king König m Könige
P: baker Bäcker m Bäcker, guest Gast m Gäste, painter Maler m Maler, singer Sängerin f Sängerinnen, cook Koch m Köche
P: judge Richter m Richter, lawyer Anwalt m Anwälte, colleague Kollege m+ Kollegen, waiter Kellner m Kellner
P: nurse Krankenschwester f Krankenschwestern, soldier Soldat m+ Soldaten, writer Schriftstellerin f Schriftstellerinnen
P: gardener Gärtner m Gärtner, grandmother Großmutter f Großmütter, thief/thieves Dieb m Diebe
A: dog Hund m Hunde, cat Katze f Katzen, horse Pferd n Pferde, bird Vogel m Vögel, cow Kuh f Kühe
A: mouse/mice Maus f Mäuse, fox Fuchs m Füchse, duck Ente f Enten, goat Ziege f Ziegen, pig Schwein n Schweine
A: bear Bär m+ Bären, rabbit Kaninchen n Kaninchen
F: apple Apfel m Äpfel, cake Kuchen m Kuchen, egg Ei n Eier, pear Birne f Birnen, potato/potatoes Kartoffel f Kartoffeln
F: tomato/tomatoes Tomate f Tomaten, soup Suppe f Suppen, sausage Wurst f Würste, carrot Karotte f Karotten
F: cherry Kirsche f Kirschen, plum Pflaume f Pflaumen, biscuit Keks m Kekse
M: bread Brot n -, cheese Käse m -, meat Fleisch n -, rice Reis m -, butter Butter f -, honey Honig m -
D: water Wasser n -, milk Milch f -, coffee Kaffee m -, tea Tee m -, wine Wein m -, beer Bier n -, juice Saft m -
R: book Buch n Bücher, letter Brief m Briefe, newspaper Zeitung f Zeitungen, story Geschichte f Geschichten
R: novel Roman m Romane, message Nachricht f Nachrichten, poem Gedicht n Gedichte, report Bericht m Berichte
T: table Tisch m Tische, chair Stuhl m Stühle, lamp Lampe f Lampen, key Schlüssel m Schlüssel, cup Tasse f Tassen
T: picture Bild n Bilder, coat Mantel m Mäntel, clock Uhr f Uhren, hat Hut m Hüte, shoe Schuh m Schuhe
T: dress Kleid n Kleider, shirt Hemd n Hemden, plate Teller m Teller, glass Glas n Gläser, bed Bett n Betten
T: knife/knives Messer n Messer, mirror Spiegel m Spiegel, camera Kamera f Kameras, ball Ball m Bälle
T: flower Blume f Blumen, ring Ring m Ringe, blanket Decke f Decken, basket Korb m Körbe, present Geschenk n Geschenke
T: ticket Karte f Karten, computer Computer m Computer, pencil Bleistift m Bleistifte, shelf/shelves Regal n Regale
O: door Tür f Türen, window Fenster n Fenster, bottle Flasche f Flaschen, box Kiste f Kisten, bag Tasche f Taschen
O: gate Tor n Tore, suitcase Koffer m Koffer, cupboard Schrank m Schränke
I: piano Klavier n Klaviere, guitar Gitarre f Gitarren, violin Geige f Geigen, flute Flöte f Flöten
V: car Auto n Autos, bicycle Fahrrad n Fahrräder, bus Bus m Busse, train Zug m Züge, boat Boot n Boote
V: ship Schiff n Schiffe, lorry Lastwagen m Lastwagen
L: house Haus n Häuser, garden Garten m Gärten, school Schule f Schulen, station Bahnhof m Bahnhöfe
L: room Zimmer n Zimmer, kitchen Küche f Küchen, market Markt m Märkte, church Kirche f Kirchen, office Büro n Büros
L: library Bibliothek f Bibliotheken, restaurant Restaurant n Restaurants, forest Wald m Wälder, village Dorf n Dörfer
L: city Stadt f Städte, museum Museum n Museen, hospital Krankenhaus n Krankenhäuser, shop Laden m Läden
L: castle Schloss n Schlösser, park Park m Parks, hotel Hotel n Hotels, factory Fabrik f Fabriken
"""
)


def _modifiers(table: str) -> tuple[Modifier, ...]:
    return tuple(Modifier(*entry.split()) for entry in table.replace("\n", " ").split(","))


MODIFIERS = _modifiers(
    """
kitchen Küchen TO, garden Garten TOL, coffee Kaffee TL, school Schul TORL, summer Sommer TL, winter Winter TL,
wine Wein TO, city Stadt RL, work Arbeits TOR, glass Glas TO, silver Silber TO, gold Gold TO, paper Papier TO,
leather Leder T, wood Holz TOL, water Wasser TO, travel Reise OR, village Dorf L, hotel Hotel TO,
family Familien RL, night Nacht RT, music Musik RL, art Kunst RL, stone Stein TOL, office Büro TO,
toy Spielzeug TOL, birthday Geburtstags TR, church Kirchen TO, mountain Berg L, theatre Theater TR,
history Geschichts R, tea-cup Teetassen T, garden-door Gartentür T, wine-bottle Weinflaschen T,
school-book Schulbuch TOL, summer-house Sommerhaus TO
"""
)

_GOODS = "TORIV"


def _adjectives(table: str) -> tuple[Adjective, ...]:
    """Rows ``english[/comparative] german[/stem[/comparative]] kinds``; no English comparative: "more ..."."""
    adjectives = []
    for entry in table.replace("\n", " ").split(","):
        english, german, kinds = entry.split()
        word, _, comparative = english.partition("/")
        forms = german.split("/")
        stem = forms[1] if len(forms) > 1 and forms[1] else forms[0]
        german_comparative = forms[2] if len(forms) > 2 else stem + "er"
        kinds = kinds.replace("G", _GOODS)
        adjectives.append(Adjective(word, comparative or None, forms[0], stem, german_comparative, kinds))
    return tuple(adjectives)


ADJECTIVES = _adjectives(
    """
old/older alt//älter PAGL, new/newer neu GL, big/bigger groß//größer AGLF, small/smaller klein PAGLF,
young/younger jung//jünger PA, red/redder rot//röter TOVF, beautiful schön PAGL, expensive teuer/teur GFL,
cold/colder kalt//kälter LDF, blue/bluer blau TOV, tired müde/müd PA, happy/happier glücklich P,
heavy/heavier schwer TOI, black/blacker schwarz//schwärzer ATOV, white/whiter weiß ATOV, green/greener grün TOVF,
sad/sadder traurig P, rich/richer reich P, poor/poorer arm//ärmer P, dirty/dirtier schmutzig TOVL,
warm/warmer warm//wärmer LFD, fresh/fresher frisch FMD, clever/cleverer klug//klüger PA,
sick/sicker krank//kränker PA, dark/darker dunkel/dunkl/dunkler L, cheap/cheaper billig GFMD,
long/longer lang//länger R, short/shorter kurz//kürzer R, strong/stronger stark//stärker PA,
friendly/friendlier freundlich PA, famous berühmt P, empty/emptier leer OL, hungry/hungrier hungrig PA,
lazy/lazier faul PA, loud/louder laut PAVL, quiet/quieter leise/leis PA, modern modern GL,
strange/stranger seltsam PARL, interesting interessant PRL, sweet/sweeter süß FM, tall/taller hoch/hoh/höher L,
good/better gut//besser MDRF, angry/angrier wütend PA, round/rounder rund T, boring langweilig PRL
"""
)


def _past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + "ed"


def _verbs(table: str) -> tuple[Verb, ...]:
    """Rows ``english | German | frame``.

    English: ``base [past participle [gerund]]``, a particle after ``+``. German: ``[prefix+]infinitive [third person]
    participle [*]`` with ``*`` for the auxiliary "sein". Frame: ``s:kinds`` subject, ``a:kinds`` accusative object,
    ``d:kinds`` dative object, ``place`` or ``direction``, ``stative``.
    """
    verbs = []
    for row in table.strip().split("\n"):
        english, german, frame = (field.split() for field in row.split("|"))
        base, _, particle = english[0].partition("+")
        past, participle = english[1:3] if len(english) > 2 else (_past(base), _past(base))
        gerund = (
            english[3] if len(english) > 3 else (base[:-1] if base.endswith("e") and base[-2] != "e" else base) + "ing"
        )
        auxiliary: Literal["haben", "sein"] = "sein" if german[-1] == "*" else "haben"
        forms = [form for form in german if form != "*"]
        prefix, _, infinitive = forms[0].rpartition("+")
        options = dict(item.partition(":")[::2] for item in frame)
        accusative = options.get("a", "").replace("G", _GOODS)
        verb = Verb(
            base=base,
            past=past,
            participle=participle,
            gerund=gerund,
            particle=particle,
            german=infinitive,
            prefix=prefix,
            german_third=forms[1] if len(forms) > 2 else None,
            german_participle=forms[-1],
            auxiliary=auxiliary,
            subject=options.get("s", "P"),
            accusative=accusative,
            dative=options.get("d", ""),
            adverbial=next((kind for kind in ("place", "direction") if kind in options), ""),
            stative="stative" in options,
        )
        verbs.append(verb)
    return tuple(verbs)


TRANSITIVE = _verbs(
    """
see saw seen | sehen sieht gesehen | a:PAPGL s:PPA stative
buy bought bought | kaufen gekauft | a:GFMD
read read read | lesen liest gelesen | a:R
find found found | finden gefunden | a:PAG
eat ate eaten | essen isst gegessen | a:FFM s:PPA
drink drank drunk | trinken getrunken | a:D
open | auf+machen aufgemacht | a:O
close | zu+machen zugemacht | a:O
need | brauchen gebraucht | a:PGMD stative
look+for | suchen gesucht | a:PAG
love | lieben geliebt | a:PA stative
visit | besuchen besucht | a:PPL
call | an+rufen angerufen | a:P
sell sold sold | verkaufen verkauft | a:GFA
forget forgot forgotten forgetting | vergessen vergisst vergessen | a:PTOR
write wrote written | schreiben geschrieben | a:R
carry | tragen trägt getragen | a:TO
repair | reparieren repariert | a:TOV
bring brought brought | mit+bringen mitgebracht | a:TFRD
invite | ein+laden lädt eingeladen | a:P
know knew known | kennen gekannt | a:PRL stative
lose lost lost | verlieren verloren | a:TOR
paint | malen gemalt | a:PAGL
play | spielen gespielt | a:I
clean | putzen geputzt | a:TOVL
steal stole stolen | stehlen stiehlt gestohlen | a:TOV
feed fed fed | füttern gefüttert | a:A
hear heard heard | hören gehört | a:PA s:PPA stative
wash | waschen wäscht gewaschen | a:AFV
meet met met | treffen trifft getroffen | a:P
take took taken | mit+nehmen nimmt mitgenommen | a:TORP
have had had | haben hat gehabt | a:AGP stative
"""
)
DATIVE = _verbs(
    """
help | helfen hilft geholfen | d:P
thank | danken gedankt | d:P
follow | folgen gefolgt * | d:PA s:PPA
answer | antworten geantwortet | d:P
trust | vertrauen vertraut | d:P stative
"""
)
DITRANSITIVE = _verbs(
    """
give gave given | geben gibt gegeben | a:TORF d:P
show showed shown | zeigen gezeigt | a:GL d:P
send sent sent | schicken geschickt | a:TR d:P
bring brought brought | bringen gebracht | a:TFD d:P
lend lent lent | leihen geliehen | a:TV d:P
"""
)
INTRANSITIVE = _verbs(
    """
sleep slept slept | schlafen schläft geschlafen | s:PPA place
work | arbeiten gearbeitet | place
wait | warten gewartet | s:PPA place
laugh | lachen gelacht |
sing sang sung | singen gesungen | place
dance | tanzen getanzt | place
swim swam swum swimming | schwimmen geschwommen * | s:PA
live | wohnen gewohnt | place stative
go went gone | gehen gegangen * | direction
travel travelled travelled travelling | reisen gereist * | direction
come came come | kommen gekommen * | direction
run ran run running | laufen läuft gelaufen * | s:PA direction
stay | bleiben geblieben * | place stative
cry | weinen geweint |
arrive | an+kommen angekommen * | place
drive drove driven | fahren fährt gefahren * | direction
sit sat sat sitting | sitzen gesessen | s:PA place stative
"""
)
SAYING = _verbs(
    """
say said said | sagen gesagt | stative
think thought thought | denken gedacht | stative
know knew known | wissen gewusst | stative
hope | hoffen gehofft | stative
believe | glauben geglaubt | stative
hear heard heard | hören gehört | stative
"""
)
TRYING = _verbs(
    """
try | versuchen versucht | stative
promise | versprechen verspricht versprochen | stative
forget forgot forgotten forgetting | vergessen vergisst vergessen | stative
decide | beschließen beschlossen | stative
begin began begun beginning | an+fangen fängt angefangen | stative
"""
)
BE = _verbs("be was been being | sein ist gewesen * | stative")[0]
COST = _verbs("cost cost cost | kosten gekostet | stative s:G")[0]


# Names, dates and adverbs


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """``English=German`` items; a word alone is the same in both languages."""
    pairs = (item.partition("=") for item in text.split())
    return tuple((english, german or english) for english, _, german in pairs)


FIRST_NAMES = _words(
    """
Anna Peter Maria Thomas Julia Lukas Sophie Paul Emma Felix Clara Max Eva Jonas Laura Simon Lena Martin Nora David
Greta Oskar Ida Moritz Helena Viktor Marta Emil Johanna Anton Alma Bruno Lotte Jakob Frieda Konrad
"""
)
# Surnames are composed, so that the test set has names that are not in the training set and must be copied.
SURNAME_STARTS = _words("Kol Ber Tar Win Sal Mor Hal Dres Lind Grau Ros Fel Nor Wald Bren Stol Kar Eber Lan Hol")
SURNAME_ENDS = _words("berg now mann stein feld ner ski holz bach dorf ling hoff")
CITIES = _pairs(
    """
Berlin Hamburg Munich=München Vienna=Wien Cologne=Köln Zurich=Zürich Paris London Rome=Rom Prague=Prag Warsaw=Warschau
Milan=Mailand Lisbon=Lissabon Brussels=Brüssel Geneva=Genf Oslo Copenhagen=Kopenhagen Dresden
"""
)
WEEKDAYS = _pairs(
    """
Monday=Montag Tuesday=Dienstag Wednesday=Mittwoch Thursday=Donnerstag Friday=Freitag Saturday=Samstag Sunday=Sonntag
"""
)
MONTHS = _pairs(
    """
January=Januar February=Februar March=März April May=Mai June=Juni July=Juli August September October=Oktober
November December=Dezember
"""
)
PERIODS = _pairs("days=Tagen weeks=Wochen months=Monaten years=Jahren hours=Stunden")  # German dative, as after "vor"
FREQUENCIES = _pairs("often=oft always=immer never=nie sometimes=manchmal usually=meistens")
MANNERS = _pairs("quickly=schnell slowly=langsam quietly=leise carefully=vorsichtig alone=allein gladly=gern")
