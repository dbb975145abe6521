"""`continuo store`: backup, restore, vacuum and stats of a store that servers may use."""

from pathlib import Path

import msgspec

from continuo.engine import print_line
from continuo.realtime.errors import SetupError
from continuo.realtime.store import (
    StoreAdministration,
    StoreError,
    StoreStats,
    back_up,
    open_administration,
    restore,
)

MIB = 1 << 20


class StoreCommand(msgspec.Struct, frozen=True):
    """`continuo store ACTION`, with the options of that action."""

    action: str
    url: str
    file: Path | None = None
    as_json: bool = False


async def run_store_command(command: StoreCommand) -> int:
    """Run `continuo store`. Returns the exit status. Raises SetupError."""
    try:
        store = open_administration(command.url, create=command.action == "restore")
        try:
            await _run(store, command)
        finally:
            await store.aclose()
    except StoreError as error:
        raise SetupError(str(error)) from None
    return 0


async def _run(store: StoreAdministration, command: StoreCommand) -> None:
    match command.action:
        case "backup":
            file = _file_of(command)
            end = await back_up(store, file)
            size = file.stat().st_size / MIB
            print_line(
                f"{file}: {end.sessions:,} sessions and {end.responses:,} stored responses, "
                f"{size:,.1f} MiB"
            )
        case "restore":
            result = await restore(store, _file_of(command))
            print_line(
                f"{result.restored:,} sessions and stored responses restored, "
                f"{result.skipped:,} skipped because the store has them"
            )
        case "vacuum":
            result = await store.vacuum()
            before, after = (
                f"{size / MIB:,.1f} MiB"
                for size in (result.size_before_bytes, result.size_after_bytes)
            )
            print_line(
                f"{result.expired_sessions:,} expired sessions removed; {before} before, {after}"
            )
        case _:
            _print_stats(await store.compute_stats(), as_json=command.as_json)


def _file_of(command: StoreCommand) -> Path:
    assert command.file is not None, "the parser requires it"
    return command.file


def _print_stats(stats: StoreStats, *, as_json: bool) -> None:
    if as_json:
        print_line(msgspec.json.encode(stats).decode())
        return
    for name in ("layout", "epoch", "sessions", "parked", "entries"):
        print_line(f"{name:<18}  {getattr(stats, name)}")
    print_line(f"{'running responses':<18}  {stats.running_responses}")
    print_line(f"{'stored responses':<18}  {stats.stored_responses}")
    print_line(f"{'size':<18}  {stats.size_bytes / MIB:,.1f} MiB")
    for tenant, counts in sorted(stats.tenants.items()):
        print_line(f"tenant {tenant}: {counts.sessions} sessions, {counts.entries} entries")
