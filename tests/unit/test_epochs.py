"""Leader epochs: which epoch wrote from which offset on, and where a follower must cut."""

import pytest

from onelog.base.errors import Fenced
from onelog.log.epochs import EpochHistory


def history() -> EpochHistory:
    epochs = EpochHistory()
    for epoch, start in ((0, 0), (0, 5), (2, 10), (2, 15), (5, 30)):
        epochs.note(epoch, start)
    return epochs


def test_an_epoch_is_noted_once_with_its_first_offset() -> None:
    assert history().rows() == [(0, 0), (2, 10), (5, 30)]
    assert history().latest == 5


def test_an_epoch_that_wrote_nothing_is_forgotten_when_the_next_begins() -> None:
    epochs = EpochHistory()
    for epoch, start in ((0, 0), (3, 5), (4, 5), (6, 9)):
        epochs.note(epoch, start)
    assert epochs.rows() == [(0, 0), (4, 5), (6, 9)]
    assert epochs.end_of(3, 12) == (0, 5)


def test_an_empty_history_has_epoch_zero_and_knows_no_end() -> None:
    assert EpochHistory().latest == 0
    assert EpochHistory().end_of(3, 7) == (-1, -1)


def test_an_older_epoch_is_fenced() -> None:
    epochs = history()
    with pytest.raises(Fenced):
        epochs.note(4, 40)
    assert epochs.rows()[-1] == (5, 30)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(0, (0, 10)), (1, (0, 10)), (2, (2, 30)), (4, (2, 30)), (5, (5, 44)), (9, (5, 44))],
)
def test_the_end_of_an_epoch_is_where_the_next_one_began(
    asked: int, answer: tuple[int, int]
) -> None:
    assert history().end_of(asked, 44) == answer


def test_an_epoch_older_than_everything_here_has_no_end() -> None:
    epochs = EpochHistory([(3, 10)])
    assert epochs.end_of(2, 44) == (-1, -1)


@pytest.mark.parametrize(
    ("cut", "rows"),
    [(31, [(0, 0), (2, 10), (5, 30)]), (30, [(0, 0), (2, 10)]), (11, [(0, 0), (2, 10)]), (0, [])],
)
def test_truncation_forgets_epochs_that_began_beyond_the_cut(
    cut: int, rows: list[tuple[int, int]]
) -> None:
    epochs = history()
    epochs.truncate(cut)
    assert epochs.rows() == rows


def test_rows_are_a_copy() -> None:
    epochs = history()
    epochs.rows().clear()
    assert epochs.latest == 5
