"""Wire protocols: how each service reads a request, refuses it, and answers; one entry a path.

To add a protocol: one module of rules, one of answers, one entry in `BY_PATH`.
"""

from __future__ import annotations

from harnessd.simulator.protocols.anthropic_answers import Anthropic
from harnessd.simulator.protocols.chat_answers import OpenAIChat
from harnessd.simulator.protocols.responses_answers import OpenAIResponses
from harnessd.simulator.protocols.wire import WireProtocol

BY_PATH: dict[str, WireProtocol] = {
    "/v1/messages": Anthropic(),
    "/v1/chat/completions": OpenAIChat(),
    "/v1/responses": OpenAIResponses(),
}

__all__ = ["BY_PATH", "WireProtocol"]
