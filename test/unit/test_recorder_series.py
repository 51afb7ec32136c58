# SPDX-License-Identifier: Apache-2.0
"""Which events are one and how many there may be; by a clock of our own."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flexinfer.recorder.reference import ObjectReference
from flexinfer.recorder.series import (
    MAX_KNOWN,
    MAX_NEW,
    PER_OBJECT,
    WINDOW,
    Drop,
    Identity,
    Series,
    SeriesBook,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def thing(name: str = "a", *, kind: str = "Thing", api_version: str = "x.y/v1") -> ObjectReference:
    return ObjectReference(api_version, kind, "default", name, f"uid-{name}")


def identity(reason: str = "Made", *, about: ObjectReference | None = None) -> Identity:
    return Identity("Normal", reason, "Make", "test", about or thing(), None)


class Book(SeriesBook):
    """Be a book with a clock, and a server that takes everything at once."""

    def __init__(self) -> None:
        self.at = 1000.0
        numbers = itertools.count()
        super().__init__(
            refresh=10.0,
            clock=lambda: self.at,
            now=lambda: START + timedelta(seconds=self.at),
            name=lambda _: f"event-{next(numbers)}",
        )

    def send(self) -> list[tuple[str, str, int]]:
        """Send what is due; return name, note and count of each."""
        self.sweep()
        done = []
        while (due := self.take()) is not None:
            series, count, _ = due
            self.sent(series, count)
            done.append((series.name, series.event.note, count))
        return done


def test_something_new_is_an_event_and_the_same_again_is_counted() -> None:
    book = Book()
    assert isinstance(book.observe(identity(), "n"), Series)
    assert book.send() == [("event-0", "n", 1)]
    assert book.observe(identity(), "n") is None
    assert book.send() == []
    book.at += 10
    assert book.send() == [("event-0", "n", 2)]
    assert book.send() == []


def test_c64_ten_thousand_identical_events_are_one_with_a_count() -> None:
    book = Book()
    for _ in range(10_000):
        assert not isinstance(book.observe(identity(), "n"), Drop)
    assert book.send() == [("event-0", "n", 10_000)]


def test_c64_a_hundred_reasons_about_one_object_are_all_seen_and_one_more_is_not() -> None:
    book = Book()
    for number in range(PER_OBJECT):
        assert isinstance(book.observe(identity(f"Reason{number}"), "n"), Series)
    assert book.observe(identity("OneMore"), "n") is Drop.OBJECT_LIMIT
    assert book.observe(identity("Reason0"), "n") is None
    assert isinstance(book.observe(identity(about=thing("b")), "n"), Series)
    assert len(book.send()) == PER_OBJECT + 1
    book.at += WINDOW
    book.send()
    assert isinstance(book.observe(identity("OneMore"), "n"), Series)


@pytest.mark.parametrize("api_version", ["v1", "events.k8s.io/v1"])
def test_c64_no_event_is_about_an_event(api_version: str) -> None:
    book = Book()
    about = thing(kind="Event", api_version=api_version)
    assert book.observe(identity(about=about), "n") is Drop.ABOUT_EVENT
    mine = thing(kind="Event", api_version="calendar.example.com/v1")
    assert isinstance(book.observe(identity(about=mine), "n"), Series)


def test_counts_are_sent_less_and_less_often_but_before_the_series_looks_over() -> None:
    book = Book()
    sent_at = []
    for _ in range(5000):
        book.observe(identity(), "n")
        if book.send():
            sent_at.append(book.at)
        book.at += 1
    gaps = [after - before for before, after in itertools.pairwise(sent_at)]
    assert gaps[:6] == [10, 20, 40, 80, 160, 300]
    assert set(gaps[6:]) == {300}


def test_a_series_that_never_ends_keeps_being_refreshed() -> None:
    book = Book()
    started = book.observe(identity(), "n")
    assert isinstance(started, Series)
    started.refreshes = 100_000
    assert started.refresh_at(10.0) == 300.0


def test_another_note_is_counted_at_first_and_news_from_a_minute_on() -> None:
    book = Book()
    book.observe(identity(), "first")
    book.send()
    assert book.observe(identity(), "second") is None
    book.at += 60
    assert isinstance(book.observe(identity(), "second"), Series)
    assert sorted(book.send()) == [("event-0", "first", 2), ("event-1", "second", 1)]
    assert len(book) == 1


def test_c37_what_was_not_seen_for_six_minutes_is_forgotten() -> None:
    book = Book()
    for number in range(100_000):
        book.observe(identity(about=thing(f"unique-{number}")), "n")
        assert len(book) <= MAX_KNOWN
        book.at += 0.01
        book.send()
    book.at += WINDOW
    book.send()
    assert len(book) == 0
    assert (book._of_object, list(book._new), list(book._updates)) == ({}, [], [])


def test_the_last_count_is_sent_when_a_series_is_forgotten() -> None:
    book = Book()
    book.observe(identity(), "n")
    book.send()
    series = book._known[identity()]
    series.refreshes = 10  # its next refresh is five minutes away
    book.at += 5
    book.observe(identity(), "n")
    for number in range(MAX_KNOWN):
        book.observe(identity(about=thing(f"other-{number}")), "n")
        if number % 500 == 0:
            book.send()
    assert ("event-0", "n", 2) in book.send()
    assert identity() not in book._known


def test_c63_what_waits_to_be_sent_is_bounded_and_the_rest_is_dropped() -> None:
    book = Book()
    outcomes = [book.observe(identity(about=thing(str(n))), "n") for n in range(10_000)]
    assert sum(1 for o in outcomes if o is Drop.QUEUE_FULL) == 10_000 - MAX_NEW
    assert book.observe(identity(about=thing("0")), "n") is None
    assert len(book.send()) == MAX_NEW


def test_a_rejected_event_is_dropped_for_a_minute_and_then_tried_anew() -> None:
    book = Book()
    book.observe(identity(), "n")
    due = book.take()
    assert due is not None
    book.reject(due[0])
    assert book.observe(identity(), "n") is Drop.REJECTED
    assert book.send() == []
    book.at += 60
    assert isinstance(book.observe(identity(), "n"), Series)
    assert book.send() == [("event-1", "n", 1)]


def test_an_event_that_the_server_lost_is_made_anew_with_its_count() -> None:
    book = Book()
    book.observe(identity(), "n")
    book.send()
    book.observe(identity(), "n")
    book.at += 10
    book.sweep()
    due = book.take()
    assert due is not None
    book.lost(due[0])
    assert book.send() == [("event-1", "n", 2)]


def test_a_discarded_event_is_new_when_it_comes_again() -> None:
    book = Book()
    book.observe(identity(), "n")
    due = book.take()
    assert due is not None
    book.discard(due[0])
    assert len(book) == 0
    assert book.send() == []
    assert isinstance(book.observe(identity(), "n"), Series)


def test_c63_after_the_end_everything_is_dropped_and_what_is_left_is_queued() -> None:
    book = Book()
    book.observe(identity(), "n")
    book.send()
    book.observe(identity(), "n")
    book.observe(identity("Other"), "n")
    book.close()
    assert book.observe(identity("Late"), "n") is Drop.CLOSED
    assert book.send() == [("event-1", "n", 1), ("event-0", "n", 2)]
    assert book.abandon() == 0
    assert len(book) == 0


def test_c63_threads_and_the_sender_never_lose_a_count() -> None:
    book = Book()

    def worker(number: int) -> None:
        for _ in range(2000):
            book.observe(identity(about=thing(str(number % 2))), "n")

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    counts: dict[str, int] = {}
    while any(thread.is_alive() for thread in threads):
        counts |= {name: count for name, _, count in book.send()}
        book.at += 10
    for thread in threads:
        thread.join()
    book.close()
    counts |= {name: count for name, _, count in book.send()}
    assert sum(counts.values()) == 8000


class Model(RuleBasedStateMachine):
    """Whatever happens, each accepted event is in exactly one count that is sent in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self.accepted = 0
        self.rejected = 0
        self.on_server: dict[str, int] = {}
        self.flying: list[tuple[Series, int]] = []
        self.losses = 0

    @rule(reason=st.sampled_from("ABC"), note=st.sampled_from("mn"), name=st.sampled_from("xy"))
    def observe(self, reason: str, note: str, name: str) -> None:
        outcome = self.book.observe(identity(reason, about=thing(name)), note)
        self.accepted += not isinstance(outcome, Drop)

    @rule(seconds=st.sampled_from([0.1, 9.0, 61.0, 200.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.book.at += seconds

    @rule()
    def sweep(self) -> None:
        self.book.sweep()

    @rule()
    def take(self) -> None:
        due = None if self.flying else self.book.take()
        if due is not None:
            assert due[0].sent == 0 or due[1] > due[0].sent
            self.flying.append((due[0], due[1]))

    @rule()
    def arrive(self) -> None:
        if self.flying:
            series, count = self.flying.pop()
            self.on_server[series.name] = count
            self.book.sent(series, count)

    @rule()
    def fail(self) -> None:
        if self.flying:
            self.book.retry(self.flying.pop()[0])

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.book) <= 6
        assert sum(self.book._of_object.values()) == len(self.book)

    def teardown(self) -> None:
        if self.flying:
            self.fail()
        self.book.close()
        self.on_server |= {name: count for name, _, count in self.book.send()}
        assert sum(self.on_server.values()) == self.accepted


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
