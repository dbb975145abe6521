"""The handlers of conversation commands: one module for each command, with its execution and the
replay of its result to a client that retries it."""

from continuo.realtime.protocol.commands import (
    AddItem,
    AddItems,
    AppendResponse,
    AppendText,
    CancelResponse,
    ClearText,
    CommitText,
    ConfigureSession,
    ConversationCommand,
    CreateSessionResponse,
    DeleteItem,
    FetchItem,
    ReplaceText,
    TruncateItem,
)
from continuo.realtime.session.commands import (
    add_item,
    add_items,
    append_response,
    cancel_response,
    commit_text_buffer,
    configure_session,
    create_response,
    delete_item,
    edit_text_buffer,
    retrieve_item,
    truncate_item,
)
from continuo.realtime.session.commands.context import AnyHandler

HANDLERS: dict[type[ConversationCommand], AnyHandler] = {
    ConfigureSession: configure_session.HANDLER,
    AddItem: add_item.HANDLER,
    AddItems: add_items.HANDLER,
    AppendResponse: append_response.HANDLER,
    FetchItem: retrieve_item.HANDLER,
    DeleteItem: delete_item.HANDLER,
    TruncateItem: truncate_item.HANDLER,
    CreateSessionResponse: create_response.HANDLER,
    CancelResponse: cancel_response.HANDLER,
    AppendText: edit_text_buffer.APPEND,
    ReplaceText: edit_text_buffer.REPLACE,
    ClearText: edit_text_buffer.CLEAR,
    CommitText: commit_text_buffer.HANDLER,
}
