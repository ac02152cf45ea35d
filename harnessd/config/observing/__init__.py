"""Observing: the parts of harness.yaml that say who may look on: metrics over TCP, traces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from harnessd.policy.language.shape import Shape
from harnessd.policy.language.source import Scalar, misread, quoted
from harnessd.policy.values import BaseUrl, Flag, Secret, SecretRef, Text

_LISTEN = re.compile(r"(127(?:\.\d{1,3}){3}|localhost|\[::1\]):(\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen(Text):
    """An address of this machine and a port. Metrics tell what tasks cost and when they run: they stay here."""

    type_name: ClassVar[str] = "address"

    def value(self, scalar: Scalar) -> str:
        text = Text.value(self, scalar)
        found = _LISTEN.fullmatch(text)
        if found is None or not 0 < int(found[2]) < 65536:
            raise misread(scalar, f"{quoted(scalar)} is not a port of this machine", self.bounds)
        return text

    @property
    def bounds(self) -> str:
        return "write 127.0.0.1:9464, localhost:9464 or [::1]:9464"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(BaseUrl):
    """Where traces are sent, the whole address."""

    of: ClassVar[str] = "a collector"
    remedy: ClassVar[str] = "write http://HOST:4318/v1/traces; headers go into OTEL_EXPORTER_OTLP_HEADERS"


class MetricsSettings(Shape):
    """Metrics over TCP, beside the ones on the socket."""

    listen: Annotated[str, Listen()] = Field(description="Address and port on this machine, for GET /metrics.")
    token: Annotated[SecretRef, Secret()] = Field(description="What the caller must show as a bearer token.")

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class TracesSettings(Shape):
    """Traces by OTLP over HTTP; the extra `otel`."""

    endpoint: Annotated[str, Endpoint()] | None = Field(
        None, description="The collector's whole address; absent: as OTEL_EXPORTER_OTLP_* say, and none if they do not."
    )
    content: Annotated[bool, Flag()] = Field(
        False, description="true: prompts, answers, arguments and results go along, secrets struck out."
    )
