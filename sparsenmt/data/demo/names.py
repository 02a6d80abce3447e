"""Names, dates and adverbs of the demo corpus."""

from __future__ import annotations


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
# Surnames are put together, so that the test set holds names that training never showed: they must be copied.
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
