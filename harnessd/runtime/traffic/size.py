"""Size: roughly how many tokens a request is, before a service has counted them."""

from __future__ import annotations

from harnessd.domain.messages import Block, ModelRequest, OpaqueBlock, TextBlock, ToolResultBlock, ToolUseBlock

# JSON and code need about 3 characters a token, prose 4: rather too many than too few.
_CHARACTERS_PER_TOKEN = 3


def estimated_tokens(request: ModelRequest) -> int:
    """Tokens of system prompt, messages and tools."""
    characters = len(request.system) + sum(_length(block) for message in request.messages for block in message.blocks)
    characters += sum(len(tool.name) + len(tool.about) + len(str(tool.schema)) for tool in request.tools)
    return characters // _CHARACTERS_PER_TOKEN


def _length(block: Block) -> int:
    match block:
        case TextBlock(text) | ToolResultBlock(_, text, _):
            return len(text)
        case ToolUseBlock(_, _, arguments, raw):
            return len(raw or "") + len(str(arguments))
        case OpaqueBlock(_, wire):
            return len(str(wire))
