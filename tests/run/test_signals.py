"""Being asked to stop: at once where nothing is lost, later where something would be."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from spa.run.signals import (
    StopRequested,
    interrupts_wait,
    stop_asked,
    stoppable,
    uninterrupted,
)


@pytest.fixture(autouse=True)
def interruptible():
    """As at a terminal, even where the tests were started in the background, with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ask(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0)  # the handler runs between two instructions


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_an_exception_at_once(number):
    with pytest.raises(StopRequested) as stop, stoppable():
        ask(number)
        pytest.fail("still there")
    assert stop.value.name == signal.Signals(number).name


def test_what_is_held_is_done_to_its_end():
    done = []
    with pytest.raises(StopRequested), stoppable():
        with uninterrupted():
            with uninterrupted():
                ask()
                done.append(1)
            assert stop_asked()
            done.append(2)
        done.append(3)
    assert done == [1, 2]


def test_it_is_raised_once_so_that_there_is_time_to_save():
    saved = []
    with pytest.raises(StopRequested), stoppable():
        try:
            ask()
        except StopRequested:
            ask()
            with uninterrupted():
                ask()
                saved.append(1)
            raise
    assert saved == [1]


def test_a_second_press_of_the_key_does_not_wait():
    with pytest.raises(KeyboardInterrupt) as stop, stoppable(), uninterrupted():
        ask(signal.SIGINT)
        ask(signal.SIGINT)
    assert not isinstance(stop.value, StopRequested)


def test_an_error_while_held_is_not_hidden_by_the_signal():
    with pytest.raises(ZeroDivisionError), stoppable(), uninterrupted():
        ask()
        raise ZeroDivisionError


def test_handlers_are_as_before_afterwards_and_nesting_changes_nothing():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with stoppable():
        inside = signal.getsignal(signal.SIGTERM)
        with stoppable():
            assert signal.getsignal(signal.SIGTERM) is inside
        assert signal.getsignal(signal.SIGTERM) is inside
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert not stop_asked()


def test_other_threads_are_left_alone():
    seen = []

    def work() -> None:
        with stoppable(), uninterrupted():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [before]


def test_a_process_that_is_starting_does_not_see_ctrl_c_before_it_ignores_it():
    code = (
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "from spa.run.signals import ignore_interrupts\n"
        "ignore_interrupts()\n"
        "print('goes on')\n"
    )
    with interrupts_wait():
        child = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    assert (child.returncode, child.stdout, child.stderr) == (0, "goes on\n", "")


def test_ctrl_c_waits_for_the_end_of_the_block():
    # In a process of its own: another thread, as tests before this one leave behind, would take the signal at once.
    code = (
        "import os, signal\n"
        "from spa.run.signals import interrupts_wait\n"
        "try:\n"
        "    with interrupts_wait():\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        print('reached')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert child.stdout == "reached\ninterrupted\n", child.stderr
