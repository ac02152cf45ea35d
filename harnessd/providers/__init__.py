"""Providers: model services behind the port `ModelProvider`; one registry line each."""

from collections.abc import Callable, Mapping

from harnessd.domain.ports import ModelProvider
from harnessd.providers.anthropic import Anthropic
from harnessd.providers.endpoint import Endpoint
from harnessd.providers.openai_chat import OpenAIChat
from harnessd.providers.openai_responses import OpenAIResponses

# The word of `protocol` in harness.yaml -> what makes a provider of an endpoint.
PROTOCOLS: Mapping[str, Callable[[Endpoint], ModelProvider]] = {
    "anthropic": Anthropic,
    "openai-chat": OpenAIChat,
    "openai-responses": OpenAIResponses,
}

__all__ = ["PROTOCOLS", "Anthropic", "Endpoint", "OpenAIChat", "OpenAIResponses"]
