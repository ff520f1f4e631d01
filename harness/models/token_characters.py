"""Which characters of a completion's text each of its tokens wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for the bytes of a character that is not complete yet."""

Decode = Callable[[Sequence[int]], str]


class TokenCharacters:
    """Counts characters by token, for any tokenizer that can decode.

    Most tokens write the same text wherever they stand after the first, which is remembered; completions for which the
    remembered pieces do not add up to the text are decoded token by token.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._pieces: dict[int, str] = {}

    def of(self, tokens: Sequence[int], text: str) -> list[int]:
        """Characters of `text`, which is decode(tokens), that each token completes; they add up to its length.

        0 for a special token and for one that only begins a character.
        """
        if not tokens:
            return []
        pieces = [self._decode(tokens[:1]), *(self._piece(token) for token in tokens[1:])]
        if "".join(pieces) == text:
            return [len(piece) for piece in pieces]
        return self._one_by_one(tokens, text)

    def _piece(self, token: int) -> str:
        """The text of a token behind another: some tokenizers drop the space before the first one."""
        if token not in self._pieces:
            self._pieces[token] = self._decode([token, token])[len(self._decode([token])) :]
        return self._pieces[token]

    def _one_by_one(self, tokens: Sequence[int], text: str) -> list[int]:
        """As text is streamed: what a token adds to the tokens since the last but one at which all was complete."""
        counts: list[int] = []
        start = complete = written = 0
        for end in range(1, len(tokens) + 1):
            before = self._decode(tokens[start:complete])
            added = self._decode(tokens[start:end])[len(before) :]
            if not added or added.endswith(_UNFINISHED) or not text.startswith(added, written):
                counts.append(0)
                continue
            counts.append(len(added))
            written += len(added)
            start, complete = complete, end
        # What no token completes, such as half a character at the limit, is the last one's.
        counts[-1] += len(text) - written
        return counts
