"""session.update: new settings of the session."""

from continuo.realtime.conversation.rendering import count_head_chars
from continuo.realtime.generation.output_grammar import check_enforceable, without_idle_reasoning
from continuo.realtime.protocol.commands import ConfigureSession
from continuo.realtime.protocol.events import SessionConfigured
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger
from continuo.realtime.session.unit_of_work import Edit


async def execute(context: CommandContext, command: ConfigureSession) -> None:
    template, old = context.conversation.template, context.unit_of_work.settings
    settings = without_idle_reasoning(command.settings, template)
    names = command.field_names
    context.text_limits.check_head(settings, names)
    chars = count_head_chars(settings)
    is_head_replaced = (settings.instructions, settings.tools) != (old.instructions, old.tools)
    with context.charge_text(chars if is_head_replaced else 0):
        await check_enforceable(settings, template, names, context.grammar_trials)
        await context.apply(
            Edit(
                param=names.instructions,
                change=lambda now: now.with_settings(settings),
                make_events=lambda _now, rewind: [SessionConfigured(settings, rewind)],
                settings=settings,
                chars=chars,
            )
        )


def replay(context: CommandContext, _command: ConfigureSession, _result: str) -> bool:
    context.emit_unlogged(SessionConfigured(context.unit_of_work.settings))
    return True


HANDLER = CommandHandler(Trigger.CONFIGURE, execute, replay)
