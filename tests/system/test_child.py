"""Errors of a child: they arrive whole and with their traceback, and none kills the child or hangs the parent."""

from __future__ import annotations

import logging
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import pytest

from sparsegen.errors import MatrixError, ResultsMismatchError, SparsegenError
from sparsegen.system.child import ChildDiedError, ChildProcess, ChildTraceback, answer, requests

SECONDS = 300.0


class Unreadable:
    """Pickles, and raises where it is read."""

    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return refuse, ()


def refuse() -> NoReturn:
    raise ZeroDivisionError("this cannot be read")


def serve(connection: Connection) -> None:
    """Runs in the child: calls the functions below by their names."""
    for request in requests(connection):
        answer(connection, partial(globals()[request]))


def with_keywords() -> NoReturn:
    raise ResultsMismatchError("not the same", differences=("n is 3",))


def chained() -> NoReturn:
    try:
        refuse()
    except ZeroDivisionError as error:
        raise MatrixError("a row is missing", source="w.mtx", place="line 3") from error


def bug() -> NoReturn:
    raise KeyError("nowhere")


def unpicklable() -> NoReturn:
    error = SparsegenError("it holds a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def unpicklable_bug() -> NoReturn:
    raise ValueError(threading.Lock())


def of_a_local_class() -> NoReturn:
    class LocalError(SparsegenError):
        pass

    raise LocalError("nobody knows my class")


def unreadable() -> NoReturn:
    raise SparsegenError("it cannot be read", Unreadable())


def unpicklable_answer() -> Any:
    return threading.Lock()


def unreadable_answer() -> Any:
    return Unreadable()


def fine() -> str:
    return "fine"


def talkative(connection: Connection) -> None:
    """Runs in the child: dies of something, at length."""
    raise RuntimeError("first words " + "and more " * 1000 + "last words")


@pytest.fixture(scope="module")
def child() -> Iterator[ChildProcess]:
    """One for all tests: that it goes on after every error is part of them."""
    started = ChildProcess("test_child:serve")
    yield started
    started.close()


def error_of(child: ChildProcess, function: str) -> SparsegenError:
    child.send(function)
    with pytest.raises(SparsegenError) as caught:
        child.receive(SECONDS)
    child.send("fine")
    assert child.receive(SECONDS) == "fine"
    return caught.value


def test_an_error_whose_constructor_needs_keywords_arrives_whole(child: ChildProcess) -> None:
    error = error_of(child, "with_keywords")
    assert type(error) is ResultsMismatchError
    assert error.differences == ("n is 3",) and str(error) == "not the same\n  n is 3"


def test_the_traceback_names_the_childs_function_and_the_cause(child: ChildProcess) -> None:
    error = error_of(child, "chained")
    assert type(error) is MatrixError and error.place == "line 3"
    assert isinstance(error.__cause__, ChildTraceback)
    assert "in chained" in error.child_traceback and "in refuse" in error.child_traceback
    assert "ZeroDivisionError: this cannot be read" in error.child_traceback
    printed = "".join(traceback.format_exception(error))
    assert error.child_traceback in printed and "in error_of" in printed
    assert printed.rstrip().endswith("MatrixError: w.mtx, line 3: a row is missing")


def test_the_traceback_is_logged(child: ChildProcess, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "sparsegen.system.child"):
        error_of(child, "bug")
    assert [r.levelname for r in caplog.records] == ["DEBUG"] and "in bug" in caplog.text


def test_a_bug_in_the_child_becomes_an_error_with_its_type(child: ChildProcess) -> None:
    error = error_of(child, "bug")
    assert type(error) is SparsegenError and str(error) == "KeyError: 'nowhere'"
    assert "in bug" in error.child_traceback


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("unpicklable", "SparsegenError: it holds a lock"),
        ("unpicklable_bug", "ValueError: <unlocked _thread.lock"),
        ("of_a_local_class", "LocalError: nobody knows my class"),
        ("unreadable", "SparsegenError: ('it cannot be read'"),
        ("unpicklable_answer", "TypeError: cannot pickle"),
    ],
)
def test_what_cannot_be_sent_is_told(child: ChildProcess, function: str, message: str) -> None:
    error = error_of(child, function)
    assert type(error) is SparsegenError and str(error).startswith(message)
    assert "Traceback" in error.child_traceback


def test_an_answer_that_the_parent_cannot_read_is_an_error(child: ChildProcess) -> None:
    error = error_of(child, "unreadable_answer")
    assert str(error) == "an answer could not be read: ZeroDivisionError: this cannot be read"
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_request_that_the_child_cannot_read_is_an_error(child: ChildProcess) -> None:
    child.send(Unreadable())
    with pytest.raises(SparsegenError, match="a request could not be read: this cannot be read") as caught:
        child.receive(SECONDS)
    assert "in refuse" in caught.value.child_traceback


def test_the_last_words_of_a_dead_child_are_in_the_error_and_all_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dying = ChildProcess("test_child:talkative")
    try:
        with (
            caplog.at_level(logging.DEBUG, "sparsegen.system.child"),
            pytest.raises(ChildDiedError, match="last words") as caught,
        ):
            dying.receive(SECONDS)
    finally:
        dying.close()
    assert "first words" not in str(caught.value)
    assert "first words" in caplog.text and "in talkative" in caplog.text


def told(connection: Connection, *numbers: int) -> None:
    """Runs in the child: what it was given."""
    connection.send(numbers)


def test_a_killed_child_that_a_driver_holds_is_not_waited_for(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its kernel may hang: its variant is recorded then, and the next child tells if the device is lost."""
    real, ends = child._process, threading.Event()

    class Held:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def poll(self) -> int | None:
            return real.poll() if ends.is_set() else None

        def wait(self, timeout: float | None = None) -> int:
            assert timeout is not None, "for ever"
            raise subprocess.TimeoutExpired("child", timeout)

    monkeypatch.setattr(child, "_process", Held())
    death = child._death()
    assert "was killed and has not ended" in str(death) and not death.was_killed
    child.close()
    assert f"worker process {real.pid} was killed" in caplog.text
    ends.set()


def test_a_child_gets_its_arguments() -> None:
    with closing(ChildProcess("test_child:told", 3, 4)) as started:
        assert started.receive(SECONDS) == (3, 4)
