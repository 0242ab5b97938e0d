"""The check of every strategy's arguments when it is made. A value of another kind than
declared would mean something else, in silence: ``FedRep("fc")`` the parameters f and c.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Number, Real
from types import UnionType
from typing import Any, get_args, get_origin

from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.options import Options

#: Flower's names of options that have another one here.
FLOWERS = {"proximal_mu": "mu", "eta": "server_learning_rate"}
PLAIN = (Number, str, bytes, list, tuple, dict, type, Options)
NUMBERS = {int: Integral, float: Real}


def checked(made: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that raises ``TypeError``, with what to type, for arguments
    of another kind than it declares and for names that it does not know.
    """
    parameters = list(inspect.signature(made).parameters.values())[1:]
    kinds = {p.name: _kinds(p.annotation) for p in parameters if p.kind is not p.VAR_KEYWORD}
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    options = next((k for of in kinds.values() for k in of if issubclass(k, Options)), None)

    @wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        for key in kwargs.keys() - _names(type(self)) if rest else ():
            raise TypeError(f"{name} has no argument {key!r}{_instead(name, key, kwargs, options)}")
        for key, value in [*zip(kinds, args, strict=False), *kwargs.items()]:
            if kinds.get(key) and not _is(value, kinds[key]):
                raise TypeError(f"{name}: {key} = {_shown(value)}: {_wanted(value, kinds[key])}")
        made(self, *args, **kwargs)

    return init


def _names(kind: type) -> set[str]:
    """Return the arguments that a class and its bases know."""
    made = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    return {name for one in made[:-1] for name in inspect.signature(one).parameters}


def _kinds(annotation: Any) -> tuple[type, ...]:
    """Return the classes that an argument can be checked by, of Python, Flower and this
    project; () if there are none.
    """
    if isinstance(annotation, UnionType):
        parts = [_kinds(part) for part in get_args(annotation)]
        return tuple(kind for part in parts for kind in part) if all(parts) else ()
    if annotation is None:
        return (type(None),)
    if get_origin(annotation) is Sequence:
        return (Sequence,)
    plain = isinstance(annotation, type) and not get_origin(annotation)
    plain = plain and annotation.__module__.split(".")[0] in ("builtins", "flwr", "fedapps")
    return (annotation,) if plain and not getattr(annotation, "_is_protocol", False) else ()


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    if not isinstance(value, PLAIN):
        return True  # what behaves like it will do
    if isinstance(value, bool) or (Sequence in kinds and isinstance(value, str)):
        return bool in kinds or (isinstance(value, str) and str in kinds)
    return isinstance(value, tuple(NUMBERS.get(kind, kind) for kind in kinds))


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)[:60]


def _wanted(value: Any, kinds: tuple[Any, ...]) -> str:
    """Return what to type instead of a value."""
    (kind, *_), shown = kinds, _shown(value)
    if Sequence in kinds and isinstance(value, str):
        return f"write a list: [{shown}]"
    if issubclass(kind, Options):
        like = [f for f in fields(kind) if (k := f.metadata.get("option")) and (value in k.choices)]
        like += [f for f in fields(kind) if type(f.default) is type(value)]
        given = f"{like[0].name}={shown}" if like else f"{fields(kind)[0].name}=..."
        return f"options have names: {kind.__name__}({given})"
    if isinstance(value, type) and issubclass(value, kind):
        return f"make one: {shown}()"
    place = "" if issubclass(kind, Strategy) else f" ({kind.__module__.rpartition('.')[0]})"
    return f"must be of the kind {kind.__name__}{place}"


def _instead(name: str, key: str, kwargs: Mapping[str, Any], options: type[Options] | None) -> str:
    """Return where an argument of a name that is unknown belongs."""
    field, value = FLOWERS.get(key, key), _shown(kwargs[key])
    own = {f.name for f in fields(options)} if options else set()
    if options and field not in own:
        field = next(iter(get_close_matches(field, own, 1, 0.75)), "")
    return f": write {name}({options.__name__}({field}={value}))" if options and field else ""
