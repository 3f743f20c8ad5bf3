"""A backend that is a pair of dicts, as one in memory and as one on disk behaves; a store over it."""

from collections.abc import MutableMapping

import pytest

from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.state import KeyedStateBackend, StateTable


class Copies(MutableMapping):
    """A mapping as a backend on disk has it: what is read is a copy, what is written is copied."""

    def __init__(self):
        self.data = {}

    def __getitem__(self, key):
        value = self.data[key]
        return list(value) if type(value) is list else value

    def __setitem__(self, key, value):
        self.data[key] = list(value) if type(value) is list else value

    def __delitem__(self, key):
        del self.data[key]

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return len(self.data)


class References(dict):
    """A mapping as a backend in memory has it."""

    @property
    def data(self):
        return self


class Table(StateTable):
    def __init__(self, make):
        self.make = make
        self.spaces = {}
        self.maps = {}
        self.mappings_made = 0

    def entries(self, namespace=()):
        return self.spaces.setdefault(namespace, self.make())

    def mapping(self, key, namespace=()):
        self.mappings_made += 1
        return self.maps.setdefault((key, namespace), self.make())

    def namespaces(self):
        return iter(self.spaces)

    def keys(self, namespace=()):
        return iter(self.spaces[namespace])

    def drop(self, namespace):
        del self.spaces[namespace]


class Backend(KeyedStateBackend):
    def __init__(self, make):
        self.tables = {}
        self.make = make

    def table(self, descriptor):
        return self.tables.setdefault(descriptor.name, Table(self.make))

    def snapshot(self):
        raise NotImplementedError

    def restore(self, snapshots):
        raise NotImplementedError

    def close(self):
        pass


@pytest.fixture(params=[References, Copies])
def new_backend(request):
    return lambda: Backend(request.param)


@pytest.fixture
def backend(new_backend):
    return new_backend()


@pytest.fixture
def store(backend):
    return KeyedStateStore(backend)
