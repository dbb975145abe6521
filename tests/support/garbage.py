"""The garbage of a piece of code: objects that reference counts do not free."""

import contextlib
import gc
from collections import Counter
from collections.abc import Generator


@contextlib.contextmanager
def garbage_of_block() -> Generator[Counter[str]]:
    """Run the enclosed block without the garbage collector. Afterwards the counter that was yielded
    holds the new objects of Continuo's types, by type, that only the collector could free."""
    garbage = Counter[str]()
    gc.collect()
    gc.freeze()  # what exists already
    gc.disable()
    try:
        yield garbage
        garbage.update(_collect())
    finally:
        gc.enable()
        gc.unfreeze()


def collect_own_garbage() -> Counter[str]:
    """Free the garbage of this process that is frozen, and would stay for ever. Returns the number
    of objects of Continuo's types that were in it, by type."""
    gc.collect(1)  # as the process does each second: this is not frozen
    gc.unfreeze()
    return _collect()


def _collect() -> Counter[str]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(type(each).__qualname__ for each in gc.garbage if _is_own_type(each))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _is_own_type(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "continuo"
