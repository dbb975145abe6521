"""The shape of a type on the wire: names of fields, tags, values, but not the names of classes.

`shape_of` describes a type as JSON; `example_of` makes an instance with a fixed value in each
field, or in required fields only, within the upper bounds of numbers.
"""

import math
import types
from typing import Any

import msgspec
from msgspec import inspect


def shape_of(kind: Any) -> Any:
    """Describe a type: fields in their order, tag first. Unions of tagged structs list each tag."""
    return _shape(inspect.type_info(kind), ())


def _shape(kind: inspect.Type, within: tuple[type, ...]) -> Any:
    match kind:
        case inspect.Metadata(extra={"encodes": encoded}):
            return _shape(inspect.type_info(encoded), within)
        case inspect.Metadata(type=inner):
            return _shape(inner, within)
        case inspect.StructType(cls=cls, fields=fields):
            if cls in within:
                return "recursive"
            tag = {} if kind.tag is None else {f"tag {kind.tag_field}": kind.tag}
            names = {field.encode_name: _shape(field.type, (*within, cls)) for field in fields}
            return {**({"array": True} if kind.array_like else {}), **tag, **names}
        case inspect.UnionType(types=kinds):
            return {"any of": [_shape(one, within) for one in kinds]}
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [_shape(item, within)]
        case inspect.TupleType(item_types=items):
            return {"tuple": [_shape(item, within) for item in items]}
        case inspect.DictType(key_type=key, value_type=value):
            return {"keys": _shape(key, within), "values": _shape(value, within)}
        case inspect.LiteralType(values=values):
            return {"one of": list(values)}
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def example_of(kind: type, *, full: bool) -> Any:
    """An instance of `kind`: a value other than None in each field, or in each required field."""
    return _example(inspect.type_info(kind), "", full)


def _example(kind: inspect.Type, name: str, full: bool) -> Any:
    match kind:
        case inspect.Metadata(type=inner):
            return _example(inner, name, full)
        case inspect.StructType(cls=cls, fields=fields):
            arguments = {
                field.name: _example(field.type, field.encode_name, full)
                for field in fields
                if full or field.required
            }
            return cls(**arguments)
        case inspect.UnionType(types=kinds):
            if not full and any(isinstance(one, inspect.NoneType) for one in kinds):
                return None
            return _example(
                next(one for one in kinds if not isinstance(one, inspect.NoneType)), name, full
            )
        case inspect.ListType(item_type=item):
            return [_example(item, name, full)]
        case inspect.VarTupleType(item_type=item):
            return (_example(item, name, full),)
        case inspect.TupleType(item_types=items):
            return tuple(_example(item, name, full) for item in items)
        case inspect.DictType(key_type=key, value_type=value):
            return {_example(key, name, full): _example(value, name, full)}
        case inspect.LiteralType(values=values):
            return values[-1]
        case inspect.StrType():
            return f"a {name}"
        case inspect.BytesType():
            return f"a {name}".encode()
        case inspect.BoolType():
            return len(name) % 2 == 0
        case inspect.IntType(le=most):
            return min(1000 + len(name), math.inf if most is None else most)
        case inspect.FloatType(le=most):
            return min(len(name) + 0.25, math.inf if most is None else float(most))
        case _:
            raise AssertionError(f"no example of {kind} for {name}")


def members(union: Any) -> tuple[type[msgspec.Struct], ...]:
    """The structs of a union, including those of nested unions."""
    if isinstance(union, types.UnionType):
        return tuple(kind for part in union.__args__ for kind in members(part))
    return (union,)
