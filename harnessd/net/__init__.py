"""Net: kept HTTP clients, bounded decoding, own clocks, and one table from foreign exceptions to our words.

The only room that knows httpx. Above it there are `Outgoing`, `Incoming` and `TransportError`.
"""

from harnessd.net.border import TransportError
from harnessd.net.clients import Clients, Incoming, Outgoing, origin_of
from harnessd.net.clocks import CallTimer
from harnessd.net.redaction import Redactor, secrets_of_url

__all__ = [
    "CallTimer",
    "Clients",
    "Incoming",
    "Outgoing",
    "Redactor",
    "TransportError",
    "origin_of",
    "secrets_of_url",
]
