"""The grammar behind the demo corpus: English sentences with Penn tags, and their German, from one abstract form.

``lexicon`` holds the words, ``english`` and ``german`` the inflection, ``phrases`` noun phrases, ``clauses`` word
order, ``grammar`` chooses at random.
"""
