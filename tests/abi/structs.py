# SPDX-License-Identifier: Apache-2.0
"""Members of the structs of C files: how many each has, and how many of them are truth values. For style.py."""
import re

COMMENTS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:.*\\\n)*.*$", re.M)
OPENS = re.compile(r"\b(?:struct|union)\s*(\w*)\s*\{")
TRUTH = re.compile(r"(?:^|[^\w])(?:bool|_Bool|atomic_bool|_Atomic\(\s*bool\s*\)|_Atomic\s+bool)(?!\s*\*)\b")


def end_of(text, at):
    """The place behind the brace that closes the one before `at`."""
    depth = 1
    while at < len(text) and depth > 0:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def declarators(text):
    """How many names a declaration declares: its commas outside of brackets, and one."""
    depth = count = 0
    for character in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        count += character == "," and depth == 0
    return count + 1


def members(body):
    """(members, truth values) of what stands between a struct's braces. Members of a struct without a tag count as its holder's own."""
    count = truths = at = 0
    while at < len(body):
        end = at
        while end < len(body) and body[end] not in ";{":
            end += 1
        head = body[at:end]
        if end < len(body) and body[end] == "{":
            close = end_of(body, end + 1)
            semicolon = body.find(";", close)
            semicolon = len(body) if semicolon < 0 else semicolon
            if re.search(r"\b(struct|union)\s*$", head):
                inner = members(body[end + 1:close - 1])
                count, truths = count + inner[0], truths + inner[1]
            elif body[close:semicolon].strip():
                count += declarators(body[close:semicolon])
            at = semicolon + 1
            continue
        if head.strip() and not head.strip().startswith("_Static_assert"):
            count += declarators(head)
            truths += declarators(head) if TRUTH.search(head) and "(*" not in head else 0
        at = end + 1
    return count, truths


def structs(text):
    """(tag, members, truth values) of each struct or union with a tag, or a name from typedef."""
    text = DIRECTIVE.sub("", COMMENTS.sub("", text))
    for opening in OPENS.finditer(text):
        close = end_of(text, opening.end())
        name = opening.group(1)
        if not name:
            if not re.search(r"\btypedef\s+$", text[:opening.start()]):
                continue
            name = text[close:text.find(";", close)].strip()
        yield (name,) + members(text[opening.end():close - 1])
