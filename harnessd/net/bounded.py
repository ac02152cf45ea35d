"""Bounded decoding: a body is undone piece by piece and never grows beyond its limit.

Compression turns 300 kB into 600 MB, so the limit holds for what comes *out*, and each step of the decompressor is
told how much it may give.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from harnessd.net.border import TransportError

_PIECE = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS


class BoundedDecoder:
    """Undo one Content-Encoding (`identity`, `gzip`, `deflate`) within `limit` bytes of output."""

    def __init__(self, encoding: str, limit: int) -> None:
        encoding = encoding.strip().lower() or "identity"
        if encoding not in {"identity", "gzip", "x-gzip", "deflate"}:
            # We ask for identity; a server that answers in a form nobody asked for breaks the protocol.
            raise TransportError("decoding", f"the answer has the encoding {encoding[:40]!r}, which was not asked for")
        self._wbits = _GZIP if "gzip" in encoding else zlib.MAX_WBITS
        self._engine = None if encoding == "identity" else zlib.decompressobj(self._wbits)
        self._left = limit
        self._limit = limit
        self._started = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Pieces of at most 64 KiB. Raises TransportError `too_large` or `decoding`."""
        if self._engine is None:
            yield self._take(data)
            return
        while data:
            piece, data = self._step(data)
            if piece:
                yield self._take(piece)

    def finish(self) -> None:
        """Raise TransportError `decoding` if the compressed body is not whole."""
        if self._engine is not None and self._started and not self._engine.eof:
            raise TransportError("decoding", "the compressed answer ends in the middle")

    def _take(self, piece: bytes) -> bytes:
        self._left -= len(piece)
        if self._left < 0:
            raise TransportError("too_large", f"the answer is larger than {self._limit} bytes")
        return piece

    def _step(self, data: bytes) -> tuple[bytes, bytes]:
        """One bounded piece, and the input that is left."""
        engine = self._engine
        if engine is None or engine.eof:  # another gzip member follows the last one
            engine = self._engine = zlib.decompressobj(self._wbits)
        try:
            piece = engine.decompress(data, _PIECE)
        except zlib.error as error:
            if self._wbits != zlib.MAX_WBITS or self._started:
                raise TransportError("decoding", f"the answer cannot be decompressed: {error}") from error
            # "deflate" means zlib by the standard and raw deflate by many servers; the first bytes tell.
            self._wbits, self._started = -zlib.MAX_WBITS, True
            self._engine = zlib.decompressobj(self._wbits)
            return b"", data
        self._started = True
        return piece, engine.unconsumed_tail or engine.unused_data
