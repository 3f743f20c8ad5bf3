"""Transforms of columns that keep no state: from a record batch and its timestamps to another.

Expressions are Narwhals'. A transform looks at each row by itself, so that its results do not depend on batches;
an expression that looks at other rows, such as a sum, is refused where it is given.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.columns import pushdown
from sluiceway.columns.expressions import all_compiled
from sluiceway.columns.joining import as_one
from sluiceway.columns.keys.key_columns import numbers_of, plain
from sluiceway.columns.numpy_arrays import array_of, numpy_of, zeros_for_nulls
from sluiceway.columns.schemas import from_outside
from sluiceway.columns.times import as_array, as_numpy
from sluiceway.connector import Alternatives
from sluiceway.errors import FunctionContractError

__all__ = [
    "Apply",
    "Drop",
    "Explode",
    "Filter",
    "Lookup",
    "MapBatches",
    "Rename",
    "Select",
    "Stamps",
    "Transform",
    "Unnest",
    "WithColumns",
    "as_batch",
    "comparable",
    "failing",
    "has_look_up",
    "passed",
    "problem_of",
    "repeats",
]

Stamps = Sequence[int] | None
"""Timestamps of a batch."""

Apply = Callable[[pa.RecordBatch, Stamps], tuple[pa.RecordBatch, Stamps]]
"""Function of rows and their timestamps."""

_WORDS: Final = {
    "AGGREGATION": "combines many rows into one",
    "ORDERABLE_AGGREGATION": "combines many rows into one",
    "WINDOW": "looks at other rows",
    "ORDERABLE_WINDOW": "looks at other rows",
    "OVER": "looks at other rows",
    "FILTRATION": "changes the number of rows",
    "ORDERABLE_FILTRATION": "changes the number of rows",
    "SERIES": "has data of its own",
}


_WITH_FORMAT: Final = frozenset({"str.to_date", "str.to_datetime", "str.to_time"})


def problem_of(expression: nw.Expr) -> str | None:
    """Return the reason why an expression would give results that depend on batches; None: it would not.

    Narwhals says so of each node of an expression, in attributes that are not public: an error, and never a wrong
    result, if they have been renamed.

    Raises:
        FunctionContractError: this version of Narwhals does not say.
    """
    try:
        for node in expression._nodes:
            if node.kind.name == "SERIES" or not node.is_elementwise():
                return f"{node.name}() {_WORDS.get(node.kind.name, 'looks at other rows')}"
            if node.name in _WITH_FORMAT and node.kwargs.get("format") is None:
                # Without rows, Arrow has none to look at; by str.to_time() it ends the process.
                return f"{node.name}() without a format takes it from the rows that it is given: name it"
            for inner in node.exprs:
                if isinstance(inner, nw.Expr) and (problem := problem_of(inner)) is not None:
                    return problem
    except AttributeError as error:
        raise FunctionContractError(
            f"Narwhals {nw.__version__} does not say whether an expression looks at one row at a time ({error}): "
            "install a version that this release of Sluiceway was made for, narwhals>=2.20,<3"
        ) from error
    return None


def passed(expression: nw.Expr, name: str) -> str | None:
    """Return the name under which an expression gives a column unchanged; None: it changes it, or may."""
    try:
        first, *rest = expression._nodes
        if first.name != "all" and not (first.name == "col" and name in first.kwargs["names"]):
            return None
        for node in rest:
            if node.name != "alias":
                return None
            name = node.kwargs["name"]
    except (AttributeError, KeyError):  # the attributes are not public, and may have been renamed
        return None
    return name


def failing(transform: Transform, data: pa.RecordBatch) -> str | None:
    """Return the name of the first expression of a transform that Arrow fails on; None: none fails by itself."""
    given: Any = getattr(transform, "expressions", None) or getattr(transform, "predicates", ())
    for one in given:
        try:
            Select((one,)).apply(data, None)
        except pa.ArrowException:
            return Select((one,)).of_nothing(data.schema).schema.names[0]
    return None


class Transform(ABC):
    """Function of a record batch and its timestamps.

    Attributes:
        word: name of the method that makes it.
    """

    word: ClassVar[str]

    @abstractmethod
    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return the rows that come out, and their timestamps."""

    def compiled(self, schema: pa.Schema) -> Apply:
        """Return a function with the results of :meth:`apply`, which may be a faster one.

        Args:
            schema: the columns that come out.
        """
        return self.apply

    def name_after(self, name: str, schema: pa.Schema) -> str | None:
        """Return the name under which a column passes with its values unchanged; None: it does not.

        Args:
            name: one of the columns that come in.
            schema: the columns that come in.
        """
        return name

    def columns_of(self, schema: pa.Schema) -> pa.Schema | None:
        """Return the columns that come out if ``schema`` comes in; None: it does not work on these."""
        # A run without rows shows the columns, as where the pipeline is built.
        try:
            return self.of_nothing(schema).schema
        except Exception:  # Narwhals has errors of many kinds for what it does not find
            return None

    def of_nothing(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return what is made of no rows; expressions of constants alone make one row.

        Raises:
            Exception: of any kind, if it does not work on columns of ``schema``.
        """
        return self.apply(_nulls(schema, 0), None)[0]

    def needs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return names among which are the columns that the ``wanted`` ones are made of; None: all columns."""
        return None

    def before(self, held: Alternatives | None) -> Alternatives | None:
        """Return what is true of each row that counts when it comes in, if ``held`` is so when it comes out.

        None: nothing is known, or a row that is left out would be missed, as by an expression that fails on it.
        """
        return None


class _OfExpressions(Transform):
    """Base of transforms of expressions, some of which Arrow computes of rows alone, as ``struct()``."""

    def of_nothing(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return what is made of no rows, or the columns that are made of rows of nulls."""
        try:
            return super().of_nothing(schema)
        except Exception as error:
            try:
                # Of two, as constants alone make one.
                made, _ = self.apply(_nulls(schema, 2), None)
            except Exception:
                raise error from None
            return made if made.num_rows == 1 else made.slice(0, 0)


def _nulls(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)


def _frame(*data: pa.RecordBatch) -> nw.DataFrame[pa.Table]:
    return nw.from_native(pa.Table.from_batches(data), eager_only=True)


def _batch(frame: nw.DataFrame[pa.Table]) -> pa.RecordBatch:
    return as_one(frame.to_native())


def _computed(data: pa.RecordBatch, compute: Callable[[nw.DataFrame[Any]], nw.DataFrame[Any]]) -> pa.RecordBatch:
    """Return what expressions make of rows, each of which is computed from itself."""
    if data.num_rows != 1:
        return _batch(compute(_frame(data)))
    # struct() of Narwhals takes each column of one row for a constant, and fails.
    return as_one(compute(_frame(data, data)).to_native().slice(0, 1))


@dataclass(frozen=True)
class Select(_OfExpressions):
    """Columns computed by expressions, in place of all others."""

    expressions: tuple[nw.Expr, ...]
    word: ClassVar[str] = "select"

    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return the computed columns alone."""
        return _computed(data, lambda frame: frame.select(*self.expressions)), stamps

    def compiled(self, schema: pa.Schema) -> Apply:
        """Return a function that calls Arrow's kernels where all expressions are simple ones."""
        found = all_compiled(self.expressions)
        if found is None:
            return self.apply
        columns = [values for _, values in found]

        def select(data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
            return pa.RecordBatch.from_arrays([values(data) for values in columns], schema=schema), stamps

        return select

    def name_after(self, name: str, schema: pa.Schema) -> str | None:
        """Return the name that an expression gives the column; None: none passes it unchanged."""
        found = [new for one in self.expressions if (new := passed(one, name)) is not None]
        return name if name in found else next(iter(found), None)

    def needs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return the columns that it reads, and those that pass."""
        return pushdown.read_by(self.expressions)

    def before(self, held: Alternatives | None) -> Alternatives | None:
        """Return what holds before it."""
        names = pushdown.kept_names(self.expressions)
        return None if names is None else pushdown.renamed(held, names)


@dataclass(frozen=True)
class WithColumns(_OfExpressions):
    """Columns computed by expressions, beside the others or in place of those of their names.

    Attributes:
        expressions: the expressions.
        safe: whether they fail on no row.
    """

    expressions: tuple[nw.Expr, ...]
    safe: bool = False
    word: ClassVar[str] = "with_columns"

    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return the rows with the computed columns."""
        return _computed(data, lambda frame: frame.with_columns(*self.expressions)), stamps

    def compiled(self, schema: pa.Schema) -> Apply:
        """Return a function that calls Arrow's kernels where all expressions are simple ones."""
        found = all_compiled(self.expressions)
        if found is None:
            return self.apply
        computed, names = dict(found), schema.names

        def with_columns(data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
            columns = {name: values(data) for name, values in computed.items()}
            arrays = [columns[name] if name in columns else data.column(name) for name in names]
            return pa.RecordBatch.from_arrays(arrays, schema=schema), stamps

        return with_columns

    def name_after(self, name: str, schema: pa.Schema) -> str | None:
        """Return the name that the column has beside the computed ones, or as one of them."""
        select = Select(self.expressions)
        return select.name_after(name, schema) if name in select.of_nothing(schema).schema.names else name

    def needs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return the columns that it reads, and those that pass."""
        read = pushdown.read_by(self.expressions)
        return None if wanted is None or read is None else wanted | read

    def before(self, held: Alternatives | None) -> Alternatives | None:
        """Return what holds before it."""
        named = pushdown.named_by(self.expressions)
        return pushdown.without(held, named) if named and self.safe else None


@dataclass(frozen=True)
class Filter(_OfExpressions):
    """Rows for which all predicates are true; one that is null drops the row.

    Attributes:
        predicates: the predicates.
        safe: whether they fail on no row.
    """

    predicates: tuple[nw.Expr, ...]
    safe: bool = False
    word: ClassVar[str] = "filter"

    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return the rows for which the predicates are true."""
        together = nw.all_horizontal(*self.predicates, ignore_nulls=False)
        chosen = _computed(data, lambda frame: frame.select(together)).column(0)
        if len(chosen) != data.num_rows:  # constants alone make one row
            chosen = pa.repeat(chosen[0], data.num_rows)
        return _filtered(data, stamps, chosen)

    def compiled(self, schema: pa.Schema) -> Apply:
        """Return a function that calls Arrow's kernels where all predicates are simple ones."""
        found = all_compiled(self.predicates)
        if found is None:
            return self.apply
        first, *others = (values for _, values in found)
        both: Any = pc.and_kleene

        def keep(data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
            chosen = first(data)
            for values in others:
                chosen = both(chosen, values(data))
            return _filtered(data, stamps, chosen)

        return keep

    def needs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return the columns that it reads, and those that pass."""
        read = pushdown.read_by(self.predicates)
        return None if wanted is None or read is None else wanted | read

    def before(self, held: Alternatives | None) -> Alternatives | None:
        """Return what holds before it."""
        return pushdown.both(pushdown.implied(self.predicates), held) if self.safe else None


def _filtered(data: pa.RecordBatch, stamps: Stamps, chosen: Any) -> tuple[pa.RecordBatch, Stamps]:
    """Return the rows for which an array of bool is true."""
    mask = zeros_for_nulls(chosen)
    kept = data.filter(mask)
    if stamps is None or kept.num_rows == data.num_rows:
        return kept, stamps
    return kept, as_array(as_numpy(stamps)[numpy_of(mask)])


@dataclass(frozen=True)
class Drop(Transform):
    """All columns but some."""

    names: tuple[str, ...]
    word: ClassVar[str] = "drop"

    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return the other columns."""
        return data.select([name for name in data.schema.names if name not in self.names]), stamps

    def name_after(self, name: str, schema: pa.Schema) -> str | None:
        """Return the name; None: the column is left out."""
        return None if name in self.names else name

    def needs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return the columns that it reads, and those that pass."""
        return wanted

    def before(self, held: Alternatives | None) -> Alternatives | None:
        """Return what holds before it."""
        return held


@dataclass(frozen=True)
class Rename(Transform):
    """The same columns under other names."""

    names: tuple[tuple[str, str], ...]
    word: ClassVar[str] = "rename"

    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return the columns under their new names."""
        new = dict(self.names)
        return data.rename_columns([new.get(name, name) for name in data.schema.names]), stamps

    def name_after(self, name: str, schema: pa.Schema) -> str | None:
        """Return the new name."""
        return dict(self.names).get(name, name)

    def needs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return the columns that it reads, and those that pass."""
        return None if wanted is None else frozenset(map(self._old, wanted))

    def before(self, held: Alternatives | None) -> Alternatives | None:
        """Return what holds before it."""
        names = {name for each in held or () for name, _, _ in each}
        return pushdown.renamed(held, {name: self._old(name) for name in names})

    def _old(self, name: str) -> str:
        return {new: old for old, new in self.names}.get(name, name)


@dataclass(frozen=True)
class Explode(Transform):
    """A row for each element of a list column. A row whose list is empty or null gives none, as in Spark."""

    name: str
    word: ClassVar[str] = "explode"

    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return a row for each element."""
        lists: Any = data.column(self.name)
        elements, names = pc.list_flatten(lists), data.schema.names
        if stamps is None and data.num_columns == 1:
            return pa.RecordBatch.from_arrays([elements], names=names), None
        # Not list_parent_indices(), which counts elements of null lists and of rows before a slice, too.
        parents = np.repeat(np.arange(len(lists)), numbers_of(pc.list_value_length(lists)))
        at = data.schema.get_field_index(self.name)
        arrays = list(data.remove_column(at).take(array_of(parents)).columns) if data.num_columns > 1 else []
        arrays.insert(at, elements)
        out = pa.RecordBatch.from_arrays(arrays, names=names)
        return out, None if stamps is None else as_array(as_numpy(stamps)[parents])

    def name_after(self, name: str, schema: pa.Schema) -> str | None:
        """Return the name; None: it is that of the lists."""
        return None if name == self.name else name

    def needs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return the columns that it reads, and those that pass."""
        return None if wanted is None else wanted | {self.name}


@dataclass(frozen=True)
class Unnest(Transform):
    """The fields of a struct column as columns, in its place."""

    name: str
    word: ClassVar[str] = "unnest"

    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return the fields in the place of the struct."""
        arrays, names = [], []
        for name, column in zip(data.schema.names, data.columns, strict=True):
            if name == self.name:
                struct: Any = column
                arrays += struct.flatten()
                names += [struct.type.field(i).name for i in range(struct.type.num_fields)]
            else:
                arrays.append(column)
                names.append(name)
        return pa.RecordBatch.from_arrays(arrays, names=names), stamps

    def needs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return the columns that it reads, and those that pass."""
        return None if wanted is None else wanted | {self.name}


_LEAST_DECIMAL: Final = 128
"""Bits of the smallest decimal that Arrow's kernels take."""


def has_look_up(kind: Any) -> bool:
    """Return if rows can be found by values of a type.

    Arrow compares no nested values, no extensions, and few small numbers.
    """
    while pa.types.is_dictionary(kind):
        kind = kind.value_type
    small = pa.types.is_float16(kind) or (pa.types.is_decimal(kind) and kind.bit_width < _LEAST_DECIMAL)
    return not (small or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def comparable(column: Any) -> Any:
    """Return a column as :class:`Lookup` compares it: without a dictionary and negative zeros."""
    column = plain(column)
    return pc.add(column, pa.scalar(0, column.type)) if pa.types.is_floating(column.type) else column


def repeats(keys: Any) -> bool:
    """Return whether a value occurs twice among keys that are :func:`comparable`; null, with no partner, may."""
    known = keys.drop_null()
    return len(known.unique()) < len(known)


@dataclass(frozen=True)
class Lookup(Transform):
    """Rows with the columns of a table that has at most one row for each value of a column.

    Attributes:
        name: the column in both.
        keys: its values in the table, each but null once, as :func:`comparable` returns them.
        columns: the other columns of the table.
        outer: whether a row without a partner has nulls; else it is left out.
    """

    name: str
    keys: pa.Array[Any]
    columns: pa.RecordBatch
    outer: bool
    word: ClassVar[str] = "lookup"

    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return the rows with the columns of the table."""
        # index_in() tells 0.0 from -0.0, which are one value.
        wanted: Any = comparable(data.column(self.name))
        found: Any = pc.index_in(wanted, value_set=self.keys, skip_nulls=True)
        if pa.types.is_floating(wanted.type):  # NaN is equal to nothing, and Arrow finds it
            is_nan: Any = pc.fill_null(pc.is_nan(wanted), False)
            found = pc.if_else(is_nan, pa.scalar(None, found.type), found)
        if not self.outer and found.null_count:
            mask = found.is_valid()
            data, found = data.filter(mask), found.drop_null()
            stamps = None if stamps is None else as_array(as_numpy(stamps)[numpy_of(mask)])
        arrays = [*data.columns, *(column.take(found) for column in self.columns.columns)]
        names = [*data.schema.names, *self.columns.schema.names]
        return pa.RecordBatch.from_arrays(arrays, names=names), stamps

    def needs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return the columns that it reads, and those that pass."""
        return None if wanted is None else wanted | {self.name}


@dataclass(frozen=True)
class MapBatches(Transform):
    """Rows that a user's function makes of a batch of rows.

    Attributes:
        fn: the function, of what ``given`` says.
        given: ``arrow``, ``table``, ``pandas``, ``polars`` or ``narwhals``.
        step: name of the step, for messages.
    """

    fn: Callable[[Any], Any]
    given: str
    step: str
    word: ClassVar[str] = "map_batches"

    def apply(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        """Return the rows that the function makes. Raises FunctionContractError: no rows, or not as many."""
        made = as_batch(self.fn(_GIVEN[self.given](data)), self.step)
        if stamps is not None and made.num_rows != data.num_rows:
            raise FunctionContractError(
                f"the function of step {self.step!r} returned {made.num_rows} rows for {data.num_rows}, so that "
                "it cannot be told which event times they have: return as many, or assign event time after it"
            )
        return made, stamps

    def name_after(self, name: str, schema: pa.Schema) -> str | None:
        """Return None: nothing is known of the columns that the function returns."""
        return None


def _pandas(data: pa.RecordBatch) -> Any:
    """Return rows as a frame of pandas whose types are those of the columns, whatever values a batch has.

    By itself, Arrow makes floats of integers and objects of bools where a batch has a null, which a function would
    see under one load and not under another; and objects of texts, whose type an empty frame does not have.
    """
    pd: Any = importlib.import_module("pandas")
    whole: dict[Any, Any] = {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.uint8(): pd.UInt8Dtype(),
        pa.uint16(): pd.UInt16Dtype(),
        pa.uint32(): pd.UInt32Dtype(),
        pa.uint64(): pd.UInt64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }

    def typed(kind: pa.DataType) -> Any:
        if pa.types.is_floating(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            return None
        return whole.get(kind) or pd.ArrowDtype(kind)

    # Metadata of pandas would make an index of a column, which is then lost.
    return data.to_pandas(types_mapper=typed, ignore_metadata=True)


def _polars(data: pa.RecordBatch) -> Any:
    import polars as pl

    # Polars 2.1 refuses a part of a column of lists of one size that has nulls, and a batch may be such a part.
    columns = [
        pa.concat_arrays([column, column[:0]]) if _has_lists_of_one_size(column.type) else column
        for column in data.columns
    ]
    try:
        return pl.from_arrow(pa.RecordBatch.from_arrays(columns, schema=data.schema))
    except pl.exceptions.PanicException as error:  # no Exception, as of decimals of 256 bits
        raise TypeError(f"Polars has no frame of these columns: {error}") from None


def _has_lists_of_one_size(kind: pa.DataType) -> bool:
    return pa.types.is_fixed_size_list(kind) or any(
        _has_lists_of_one_size(kind.field(index).type) for index in range(kind.num_fields)
    )


_GIVEN: Final[dict[str, Callable[[pa.RecordBatch], Any]]] = {
    "arrow": lambda data: data,
    "table": lambda data: pa.Table.from_batches([data]),
    "pandas": _pandas,
    "polars": _polars,
    "narwhals": _frame,
}


def as_batch(made: Any, step: str) -> pa.RecordBatch:
    """Return rows that a user's function made. Raises FunctionContractError: it is no table of any kind."""
    if isinstance(made, pa.RecordBatch):
        return from_outside(made)
    if isinstance(made, nw.DataFrame):
        made = made.to_native()
    if isinstance(made, pa.Table):
        return as_one(from_outside(made))
    if type(made).__module__.partition(".")[0] == "pandas" and hasattr(made, "columns"):
        return pa.RecordBatch.from_pandas(made, preserve_index=False)
    if hasattr(made, "__arrow_c_stream__"):
        return as_one(from_outside(pa.table(made)))
    raise FunctionContractError(
        f"the function of step {step!r} returned {made!r:.100} ({type(made).__name__}); it must return a "
        "RecordBatch, a Table, or a frame of pandas, Polars or Narwhals"
    )
