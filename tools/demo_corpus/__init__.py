"""The grammar that the demo corpus comes from: English sentences with Penn tags, and their German translations.

Both sentences of a pair come from one abstract form. ``lexicon`` holds the words, ``english`` and ``german`` the
inflection, ``phrases`` noun phrases, ``clauses`` word order; ``random_phrases`` and ``grammar`` choose at random;
``sentence_file`` packs the pairs into the file that the package ships.
"""
