"""A shell script as commands of words, as far as it can be told without running it.

In: a text. Out: its commands; each word with its value, its place, and whether the value is known. Answers: which words
does the line that starts the run consist of? Assignments of plain words are followed; anything else that a shell would
fill in (`$1`, `$(...)`, `${X:-8}`) leaves the word unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PIECE = re.compile(
    r"(?P<blank>(?:[ \t]|\\\r?\n)+)|(?P<end>(?:\r?\n|&&|\|\||[;|&])+)|(?P<paren>[()])"
    r"|'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\"|(?P<run>\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`)|\\(?P<escape>.)"
    r"|(?P<word>[^\s'\"\\;|&()`$]+|\$\{(?:[^{}]|\$\{[^{}]*\})*\}|\$\w+|\$.?)",
    re.DOTALL,
)
ESCAPED = re.compile(r"\\([\"\\$`])|\\\r?\n")
VARIABLE = re.compile(r"\$\{(\w+)(\[@\]|\[\*\])?\}|\$(\w+)|\$\(|`|\$\{")
ASSIGNMENT = re.compile(r"(\w+)\+?=")
REDIRECTION = re.compile(r"\d*[<>]")
BEFORE_A_NAME = ("export", "declare", "local", "readonly", "typeset", "then", "else", "do", "{")
WRITTEN = re.compile(
    r"(^[ \t]*(?:cat|tee|python3?)\b[^\n]*<<-?[ \t]*[\"']?(\w+)[\"']?[^\n]*\n)(.*?^[ \t]*\2[ \t]*$)",
    re.DOTALL | re.MULTILINE,
)
"""A here-document that is data: a file that the script writes, a message, a program in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command; `value` is what the shell hands over, as written where that is not `known`."""

    value: str
    start: int
    end: int
    known: bool = True


def commands(text: str) -> list[list[Word]]:
    """The commands of a script, in order, variables filled in where their value is plain."""
    return _parsed(text, {})


def without_data(text: str) -> str:
    """The script with blanks where a here-document holds data; every other sign keeps its place."""
    return WRITTEN.sub(lambda match: match[1] + re.sub(r"[^\n]", " ", match[3]), text)


def assignments(text: str) -> dict[str, Word]:
    """The variables that a script sets once to one word, exported or not."""
    variables: dict[str, list[Word]] = {}
    _parsed(text, variables)
    return {name: words[0] for name, words in variables.items() if len(words) == 1}


def _parsed(text: str, variables: dict[str, list[Word]]) -> list[list[Word]]:
    """The commands; what they assign is put into `variables`."""
    found: list[list[Word]] = [[]]
    text = without_data(text)
    at, length = 0, len(text)
    while at < length:
        if text[at] == "#" and (at == 0 or text[at - 1] in " \t\r\n;"):
            stop = text.find("\n", at)
            at = length if stop < 0 else stop
            continue
        piece = PIECE.match(text, at)
        if piece is None:  # a quote that is never closed
            break
        if piece["end"]:
            found.append([])
            at = piece.end()
        elif piece["blank"] or piece["paren"]:
            at = piece.end()
        else:
            words, at = _word(text, at, variables)
            if not _assigned(text, words, found[-1], variables):
                found[-1] += words
            elif text.startswith("(", at):  # NAME=( word ... )
                name = words[0].value.partition("=")[0].rstrip("+")
                variables[name], at = _array(text, at + 1, variables)
    kept = (_before_redirection(text, words) for words in found)
    return [command for command in kept if command and command[0].value != ":"]  # `: '...'` is a comment


def _before_redirection(text: str, words: list[Word]) -> list[Word]:
    """The command without `> log 2>&1` at its end."""
    for at, word in enumerate(words):
        if REDIRECTION.match(word.value) and REDIRECTION.match(text, word.start):
            return words[:at]
    return words


def _assigned(text: str, words: list[Word], before: list[Word], variables: dict[str, list[Word]]) -> bool:
    """Whether the word is an assignment in front of a command, which is then remembered."""
    if len(words) != 1 or any(word.value not in BEFORE_A_NAME for word in before):
        return False
    match = ASSIGNMENT.match(text, words[0].start)
    if match is None:
        return False
    value = Word(
        value=words[0].value[match.end() - match.start() :], start=match.end(), end=words[0].end, known=words[0].known
    )
    again = match[1] in variables or match.group().endswith("+=")
    variables[match[1]] = [Word(value="", start=value.start, end=value.end, known=False)] if again else [value]
    return True


def _array(text: str, at: int, variables: dict[str, list[Word]]) -> tuple[list[Word], int]:
    words: list[Word] = []
    while at < len(text) and text[at] != ")":
        piece = PIECE.match(text, at)
        if piece is None:
            return words, len(text)
        if text[at] == "#" and text[at - 1] in " \t\r\n(":
            stop = text.find("\n", at)
            at = len(text) if stop < 0 else stop
        elif piece["blank"] or piece["end"] or piece["paren"]:
            at = piece.end()
        else:
            more, at = _word(text, at, variables)
            words += more
    return words, at + 1


def _word(text: str, start: int, variables: dict[str, list[Word]]) -> tuple[list[Word], int]:
    """The words that one written word stands for: several where an unquoted variable holds several."""
    at, value, known = start, "", True
    while at < len(text):
        piece = PIECE.match(text, at)
        if piece is None:
            return [Word(value=text[start:], start=start, end=len(text), known=False)], len(text)
        if piece["blank"] or piece["end"] or piece["paren"]:
            break
        if piece["single"] is not None:
            value += piece["single"]
        elif piece["double"] is not None:
            inner, sure = _quoted(piece["double"], variables)
            value, known = value + inner, known and sure
        elif piece["escape"] is not None:
            value += piece["escape"]
        elif piece["run"] is not None:
            value, known = value + piece["run"], False
        else:
            whole = at == start and _is_last(text, piece.end())
            several = _split(piece["word"], variables) if whole else None
            if several is not None:
                return several, piece.end()
            inner, sure = _filled(piece["word"], variables)
            value, known = value + inner, known and sure
        at = piece.end()
    whole_array = re.fullmatch(r'"\$\{(\w+)\[@\]\}"', text[start:at])
    if whole_array and whole_array[1] in variables:
        return variables[whole_array[1]], at
    return [Word(value=value, start=start, end=at, known=known)], at


def _is_last(text: str, at: int) -> bool:
    return at >= len(text) or text[at] in " \t\r\n;|&()"


def _split(word: str, variables: dict[str, list[Word]]) -> list[Word] | None:
    """The words of `$NAME`, which a shell splits at blanks; None where it is no variable that is known."""
    match = VARIABLE.fullmatch(word)
    name = match and (match[1] or match[3])
    if not name or name not in variables:
        return None
    words = variables[name]
    if len(words) == 1 and not words[0].known:
        return None
    if len(words) == 1 and words[0].known and re.search(r"\s", words[0].value):
        base, inner = words[0].start + 1, words[0].value
        return [
            Word(value=part.value, start=base + part.start, end=base + part.end, known=part.known)
            for command in commands(inner)
            for part in command
        ]
    return words


def _quoted(text: str, variables: dict[str, list[Word]]) -> tuple[str, bool]:
    """The inside of double quotes: variables filled in, a backslash before a sign taken away."""
    value, known, at = "", True, 0
    for escape in ESCAPED.finditer(text):
        inner, sure = _filled(text[at : escape.start()], variables)
        value, known, at = value + inner + (escape[1] or ""), known and sure, escape.end()
    inner, sure = _filled(text[at:], variables)
    return value + inner, known and sure


def _filled(word: str, variables: dict[str, list[Word]]) -> tuple[str, bool]:
    """The word with its variables filled in, and whether that worked for all of them."""
    known = True

    def value(match: re.Match[str]) -> str:
        nonlocal known
        words = variables.get(match[1] or match[3] or "", [])
        if len(words) != 1 or not words[0].known:
            known = False
            return match.group()
        return words[0].value

    return VARIABLE.sub(value, word), known
