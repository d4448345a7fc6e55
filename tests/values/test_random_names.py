"""Names made of these words must be readable, safe as file names, and unlikely to meet."""

from __future__ import annotations

import pytest

from assay.values.random_names import ADJECTIVES, ANIMALS


@pytest.mark.parametrize(("words", "least"), [(ADJECTIVES, 120), (ANIMALS, 150)])
def test_there_are_enough_different_words(words, least):
    assert len(words) == len(set(words)) >= least


def test_words_are_plain():
    odd = [word for word in (*ADJECTIVES, *ANIMALS) if not (word.isascii() and word.isalpha() and word.islower())]
    assert odd == []


def test_no_word_is_in_both_lists():
    assert not set(ADJECTIVES) & set(ANIMALS)
