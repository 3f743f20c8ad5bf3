"""Attributes of function objects that a run binds: no copy and no other process gets them."""

import copy
import threading

from sluiceway.functions import Function
from sluiceway.functions.life import note_closed, note_opened, unopened


class Client(Function):
    def __init__(self, url):
        self.url = url
        self.session = None
        self.calls = 0

    def open(self, context):
        self.session = threading.Lock()
        self.opened = threading.Lock()


class Slotted(Client):
    __slots__ = ("__private", "size", "unset")

    def __init__(self, url):
        super().__init__(url)
        self.size = 3
        self.__private = url

    def private(self):
        return self.__private


class Table(dict, Function):
    pass


def opened(function):
    note_opened(function)
    function.open(None)
    return function


def of(function):
    return {name: value for name, value in vars(function).items() if not name.startswith("__sluiceway")}


def test_an_object_that_was_never_opened_is_itself():
    client = Client("here")
    assert unopened(client) is client


def test_what_a_run_has_bound_is_left_out_while_it_is_open_and_afterwards():
    client = opened(Client("here"))
    client.calls += 1
    before = {"url": "here", "session": None, "calls": 0}
    assert of(unopened(client)) == before
    assert client.session is not None, "the run goes on with its own"
    note_closed(client)
    assert of(unopened(client)) == before
    assert of(copy.deepcopy(unopened(client))) == before


def test_attributes_that_a_program_sets_between_two_runs_count():
    client = opened(Client("here"))
    note_closed(client)
    client.url = "there"
    assert of(unopened(client)) == {"url": "there", "session": None, "calls": 0}
    opened(client)
    assert of(unopened(client)) == {"url": "there", "session": None, "calls": 0}
    note_closed(client)
    assert of(unopened(client)) == {"url": "there", "session": None, "calls": 0}


def test_initialize_state_and_open_are_one_opening():
    client = Client("here")
    note_opened(client)
    client.buffer = threading.Lock()
    opened(client)
    assert of(unopened(client)) == {"url": "here", "session": None, "calls": 0}


def test_values_in_slots_are_kept():
    made = unopened(opened(Slotted("here")))
    assert (made.size, made.private(), hasattr(made, "unset")) == (3, "here", False)
    assert of(made) == {"url": "here", "session": None, "calls": 0}


def test_an_object_that_is_a_built_in_type_as_well_is_left_as_it_is():
    table = Table(a=1)
    note_opened(table)
    assert unopened(table) is table
