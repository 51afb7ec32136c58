# SPDX-License-Identifier: Apache-2.0
"""Own writes: a reader never goes back in time, and nothing is kept for ever."""

from __future__ import annotations

from contextvars import copy_context

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from flexinfer import runs
from flexinfer.cache.own_writes import OwnWrites, compare, revision
from flexinfer.cache.store import Store
from flexinfer.meta.envelope import ObjectMeta, StoredObject
from flexinfer.meta.resource import NamespacedName

KEY = NamespacedName("ns", "a")


def item(
    version: int | str, *, name: str = "a", uid: str = "u", labels: dict[str, str] | None = None
) -> StoredObject:
    meta = ObjectMeta(
        name=name, namespace="ns", uid=uid, resource_version=str(version), labels=labels or {}
    )
    return StoredObject(meta, b"{}")


def seen(own: OwnWrites, one: StoredObject) -> None:
    own.observe(one.meta.key, one)
    own.passed(one.meta.resource_version)


def gone(own: OwnWrites, one: StoredObject) -> None:
    own.remove(one.meta.key, one.meta)
    own.passed(one.meta.resource_version)


def overlay() -> tuple[Store, OwnWrites]:
    store = Store()
    return store, OwnWrites(store, admits=lambda meta: meta.labels.get("in", "yes") == "yes")


def version(store: Store, key: NamespacedName = KEY) -> str | None:
    one = store.get(key)
    return one.meta.resource_version if one else None


def begin_and_end(own: OwnWrites) -> None:
    """Write in one run, and let another delete."""
    runs.begin("test", KEY)
    own.wrote(item(5))
    runs.begin("test", KEY)
    own.deleted(KEY, "u")


def test_the_writer_of_a_state_is_the_run_that_wrote_it_and_not_one_that_deleted() -> None:
    _store, own = overlay()
    seen(own, item(4))
    copy_context().run(begin_and_end, own)
    assert own.writer_of(KEY, item(5)) is None
    assert own.written(item(5).meta) is None


def test_the_writer_of_a_state_is_found_until_it_was_seen() -> None:
    _store, own = overlay()
    seen(own, item(4))
    own.wrote(item(5))
    assert own.writer_of(KEY, item(5)) is runs.current()
    context = copy_context()
    context.run(runs.begin, "test", KEY)
    context.run(own.wrote, item(6))
    assert own.writer_of(KEY, item(5)) is None
    assert own.writer_of(KEY, item(6)) is context.run(runs.current)
    assert own.writer_of(KEY, item(6, uid="another")) is None
    answer = own.written(item(6).meta)
    assert answer is not None
    seen(own, answer)
    assert own.writer_of(KEY, answer) is None
    assert len(own) == 0


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("9", "10", -1),
        ("10", "9", 1),
        ("7", "7", 0),
        ("123456789012345678901234567890", "99999999999999999999", 1),
        ("abc", "abc", 0),
        ("abc", "7", None),
        ("7", "", None),
    ],
)
def test_versions_are_numbers_of_any_length_or_only_equal(
    left: str, right: str, expected: int | None
) -> None:
    assert compare(left, right) == expected


@given(st.text(max_size=5))
def test_only_ascii_digits_are_a_revision(text: str) -> None:
    number = revision(text)
    assert (number is None) == (not (text.isascii() and text.isdigit()))


def test_c35_a_write_is_read_until_the_watch_has_passed_it() -> None:
    store, own = overlay()
    seen(own, item(5))
    own.wrote(item(9))
    assert version(store) == "9"
    assert own.known(KEY) is not None
    seen(own, item(7))
    assert version(store) == "9"
    seen(own, item(9))
    assert (version(store), len(own)) == ("9", 0)
    seen(own, item(11))
    assert version(store) == "11"


def test_c35_a_created_object_is_read_at_once() -> None:
    store, own = overlay()
    seen(own, item(5, name="other"))
    own.wrote(item(6))
    assert version(store) == "6"
    assert own.known(KEY) is None
    assert [one.meta.name for one in own.known_items()] == ["other"]
    own.bookmarked("8")
    assert (version(store), len(own)) == (None, 0)


def test_an_answer_that_the_watch_overtook_is_no_news() -> None:
    store, own = overlay()
    seen(own, item(9))
    own.wrote(item(9))
    own.wrote(item(8))
    assert (version(store), len(own)) == ("9", 0)


def test_answers_that_arrive_out_of_order_leave_the_newest() -> None:
    store, own = overlay()
    own.wrote(item(8))
    own.wrote(item(7))
    own.wrote(item(8))
    assert version(store) == "8"


def test_c35_a_deleted_object_reads_as_gone_until_its_event() -> None:
    store, own = overlay()
    seen(own, item(5))
    own.deleted(KEY, "u")
    own.deleted(KEY, "u")
    assert version(store) is None
    seen(own, item(6))
    own.wrote(item(6))
    own.bookmarked("6")
    assert version(store) is None
    gone(own, item(7))
    assert (version(store), len(own)) == (None, 0)
    seen(own, item(8, uid="v"))
    assert version(store) == "8"


def test_a_deleted_object_does_not_hide_its_successor() -> None:
    store, own = overlay()
    seen(own, item(5))
    own.deleted(KEY, "u")
    seen(own, item(9, uid="v"))
    assert (version(store), len(own)) == ("9", 0)


def test_a_name_created_again_here_hides_the_old_object() -> None:
    store, own = overlay()
    seen(own, item(5))
    own.deleted(KEY, "u")
    own.wrote(item(8, uid="v"))
    seen(own, item(6))
    gone(own, item(7))
    assert version(store) == "8"
    seen(own, item(8, uid="v"))
    assert (version(store), len(own)) == ("8", 0)


def test_deleting_what_was_created_here_and_never_seen_hides_its_events() -> None:
    store, own = overlay()
    seen(own, item(4, name="other"))
    own.wrote(item(5))
    own.deleted(KEY, "u")
    seen(own, item(5))
    assert version(store) is None
    gone(own, item(6))
    assert (version(store), len(own)) == (None, 0)


def test_late_events_of_an_earlier_object_do_not_bring_a_deleted_one_back() -> None:
    store, own = overlay()
    seen(own, item(5))
    own.wrote(item(9, uid="v"))
    own.deleted(KEY, "v")
    seen(own, item(6))
    assert version(store) is None
    gone(own, item(8))
    seen(own, item(9, uid="v"))
    assert version(store) is None
    gone(own, item(10, uid="v"))
    assert (version(store), len(own)) == (None, 0)


def test_deleting_what_nobody_shows_leaves_nothing_behind() -> None:
    store, own = overlay()
    own.deleted(KEY, "u")
    seen(own, item(5, uid="v"))
    own.deleted(KEY, "u")
    assert (version(store), len(own)) == ("5", 0)
    own.wrote(item(7, uid="v"))
    own.deleted(KEY, "u")
    assert version(store) == "7"


def test_a_write_that_leaves_the_selection_is_not_read() -> None:
    store, own = overlay()
    seen(own, item(5))
    own.wrote(item(7, labels={"in": "no"}))
    assert version(store) is None
    own.wrote(item(9, name="b", labels={"in": "no"}))
    gone(own, item(7))
    assert (version(store), len(own)) == (None, 1)
    own.bookmarked("9")
    assert len(own) == 0


def test_leaving_the_selection_and_coming_back_in_one_write_is_read_at_once() -> None:
    store, own = overlay()
    seen(own, item(5))
    own.wrote(item(9))
    gone(own, item(7))
    assert version(store) == "9"


def test_a_list_ends_writes_it_is_newer_than_and_keeps_the_others() -> None:
    store, own = overlay()
    own.wrote(item(5))
    own.wrote(item(9, name="b"))
    own.observe(KEY, item(5))
    own.relisted("7")
    assert (version(store), version(store, NamespacedName("ns", "b"))) == ("5", "9")
    assert len(own) == 1


def test_a_list_without_the_deleted_object_ends_its_entry() -> None:
    store, own = overlay()
    seen(own, item(5))
    own.deleted(KEY, "u")
    own.observe(KEY, item(5))
    own.relisted("6")
    assert (version(store), len(own)) == (None, 1)
    own.vanish(KEY)
    own.relisted("8")
    assert (version(store), len(own)) == (None, 0)


def test_a_list_from_before_a_creation_does_not_bring_its_deletion_back() -> None:
    store, own = overlay()
    own.relisted("4")
    own.wrote(item(9))
    own.deleted(KEY, "u")
    own.relisted("7")
    assert len(own) == 1
    seen(own, item(9))
    assert version(store) is None


def test_c20_a_restored_server_ends_every_entry() -> None:
    store, own = overlay()
    seen(own, item(500))
    own.wrote(item(600))
    own.wrote(item(601, name="b"))
    own.observe(KEY, item(100))
    own.relisted("120")
    assert (version(store), len(own), len(store)) == ("100", 0, 1)
    own.wrote(item(130))
    assert version(store) == "130"


def test_versions_that_cannot_be_ordered_are_matched_by_equality() -> None:
    store, own = overlay()
    seen(own, item("x1"))
    own.wrote(item("x3"))
    seen(own, item("x2"))
    assert version(store) == "x3"
    seen(own, item("x3"))
    assert (version(store), len(own)) == ("x3", 0)
    own.wrote(item("x4"))
    own.bookmarked("x9")
    assert len(own) == 0
    own.wrote(item("x5"))
    own.relisted("x10")
    assert len(own) == 0
    own.wrote(item("x6"))
    gone(own, item("x7"))
    assert (version(store), len(own)) == (None, 0)


def test_c37_many_writes_while_no_watch_passes_stay_bounded_by_the_keys() -> None:
    store, own = overlay()
    for number in range(1, 5001):
        own.wrote(item(number, name=f"n{number % 10}"))
    assert (len(own), len(store)) == (10, 10)
    assert len(own._due) <= 2 * 10 + 65
    own.bookmarked("5000")
    assert (len(own), len(own._due)) == (0, 0)


NAMES = ("a", "b")


class DelayedWatch(RuleBasedStateMachine):
    """A server with other writers, our own writes, and a watch that lags and is relisted.

    The server's history of each key is the truth. What is read must be a state of that history,
    never before one that was read or answered earlier.
    """

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.own = OwnWrites(self.store, admits=lambda _: True)
        self.revision = 10
        self.uids = 0
        self.server: dict[str, StoredObject] = {}
        self.log: list[tuple[str, StoredObject]] = []
        self.delivered = 0
        # The number of changes to each key that a reader has knowledge of.
        self.history: dict[str, list[StoredObject | None]] = {name: [None] for name in NAMES}
        self.floor = dict.fromkeys(NAMES, 0)
        self.answers: list[StoredObject] = []
        self.listing: list[StoredObject] | None = None
        self.listed_at = (0, 0)
        self.missing: set[NamespacedName] = set()

    @initialize()
    def first_list(self) -> None:
        self.a_list_is_read()
        self.the_list_ends()

    def change(self, name: str, *, deletes: bool = False) -> StoredObject:
        self.revision += 1
        old = self.server.get(name)
        if old is None:
            self.uids += 1
        uid = old.meta.uid if old else f"u{self.uids}"
        new = item(self.revision, name=name, uid=uid)
        if deletes:
            del self.server[name]
            self.history[name].append(None)
        else:
            self.server[name] = new
            self.history[name].append(new)
        kind = "DELETED" if deletes else "MODIFIED" if old else "ADDED"
        self.log.append((kind, new))
        return new

    @rule(name=st.sampled_from(NAMES))
    def another_writes(self, name: str) -> None:
        self.change(name)

    @rule(name=st.sampled_from(NAMES))
    def another_deletes(self, name: str) -> None:
        if name in self.server:
            self.change(name, deletes=True)

    @rule(name=st.sampled_from(NAMES), is_late=st.booleans())
    def we_write(self, name: str, is_late: bool) -> None:  # noqa: FBT001  # hypothesis passes it
        answer = self.change(name)
        if is_late:
            self.answers.append(answer)
        else:
            self.take_answer(answer)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def a_late_answer_comes(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.answers) - 1))
        self.take_answer(self.answers.pop(index))

    def take_answer(self, answer: StoredObject) -> None:
        self.own.wrote(answer)
        name = answer.meta.name
        self.floor[name] = max(self.floor[name], self.history[name].index(answer))

    @rule(name=st.sampled_from(NAMES))
    def we_delete(self, name: str) -> None:
        shown = self.store.get(NamespacedName("ns", name))
        if shown is None or name not in self.server:
            return
        if self.server[name].meta.uid != shown.meta.uid:
            return
        self.change(name, deletes=True)
        self.own.deleted(NamespacedName("ns", name), shown.meta.uid)
        self.floor[name] = len(self.history[name]) - 1

    @precondition(lambda self: self.listing is None and self.delivered < len(self.log))
    @rule()
    def the_watch_delivers(self) -> None:
        kind, one = self.log[self.delivered]
        self.delivered += 1
        if kind == "DELETED":
            gone(self.own, one)
        else:
            seen(self.own, one)

    @precondition(lambda self: self.listing is None)
    @rule()
    def a_bookmark_comes(self) -> None:
        while self.delivered < len(self.log):
            self.the_watch_delivers()
        self.own.bookmarked(str(self.revision))

    @rule()
    def a_list_is_read(self) -> None:
        self.listing = list(self.server.values())
        self.listed_at = (self.revision, len(self.log))
        self.missing = {one.meta.key for one in self.own.known_items()}

    @precondition(lambda self: self.listing)
    @rule()
    def an_item_of_the_list_comes(self) -> None:
        assert self.listing
        one = self.listing.pop()
        self.missing.discard(one.meta.key)
        self.own.observe(one.meta.key, one)

    @precondition(lambda self: self.listing is not None)
    @rule()
    def the_list_ends(self) -> None:
        while self.listing:
            self.an_item_of_the_list_comes()
        for key in self.missing:
            self.own.vanish(key)
        self.own.relisted(str(self.listed_at[0]))
        self.delivered = self.listed_at[1]
        self.listing = None

    @invariant()
    def reads_never_go_back(self) -> None:
        for name in NAMES:
            one = self.store.get(NamespacedName("ns", name))
            states = self.history[name]
            positions = [
                index
                for index, state in enumerate(states)
                if (state is None and one is None)
                or (state and one and state.meta.resource_version == one.meta.resource_version)
            ]
            later = [position for position in positions if position >= self.floor[name]]
            assert later, f"{name}: read {one} though {states[self.floor[name]]} was known"
            self.floor[name] = later[0]

    @invariant()
    def nothing_is_kept_once_the_watch_has_caught_up(self) -> None:
        if self.delivered == len(self.log) and self.listing is None:
            assert len(self.own) == 0
            assert {o.meta.resource_version for o in self.store.objects()} == {
                o.meta.resource_version for o in self.server.values()
            }


DelayedWatch.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestDelayedWatch = DelayedWatch.TestCase
