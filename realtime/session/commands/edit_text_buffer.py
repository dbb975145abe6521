"""input_text_buffer.append, .replace and .clear: change a text that is not finished."""

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import TEXT_CHARS_MAX
from continuo.realtime.protocol.commands import AppendText, ClearText, ReplaceText
from continuo.realtime.protocol.events import TextAppended, TextCleared
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger
from continuo.realtime.session.unit_of_work import Edit


async def append(context: CommandContext, command: AppendText) -> None:
    await _set_text(context, context.unit_of_work.draft + command.text)


async def replace(context: CommandContext, command: ReplaceText) -> None:
    await _set_text(context, command.text)


async def clear(context: CommandContext, _command: ClearText) -> None:
    await context.apply(
        Edit(
            param="text",
            make_events=lambda _now, _rewind: [TextCleared()],
            draft="",
            only_appends=True,
        )
    )


async def _set_text(context: CommandContext, text: str) -> None:
    if len(text) > TEXT_CHARS_MAX:
        raise Refusal(
            f"The input text buffer would hold {len(text):,} characters; it holds "
            f"{TEXT_CHARS_MAX:,}.",
            code="string_above_max_length",
            param="text",
        )
    context.text_limits.check(len(text), "text")
    event = TextAppended(len(text))
    with context.charge_text(len(text)):
        await context.apply(
            Edit(
                param="text",
                make_events=lambda _now, _rewind: [event],
                draft=text,
                only_appends=True,
            )
        )


def _replay_text(context: CommandContext, _command: AppendText | ReplaceText, _result: str) -> bool:
    context.emit_unlogged(TextAppended(len(context.unit_of_work.draft)))
    return True


def _replay_clear(context: CommandContext, _command: ClearText, _result: str) -> bool:
    context.emit_unlogged(TextCleared())
    return True


APPEND = CommandHandler[AppendText](Trigger.EDIT, append, _replay_text)
REPLACE = CommandHandler[ReplaceText](Trigger.EDIT, replace, _replay_text)
CLEAR = CommandHandler(Trigger.EDIT, clear, _replay_clear)
