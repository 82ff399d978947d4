# SPDX-License-Identifier: Apache-2.0
"""Which file of a folder names functions of which other one: for layers.py and style.py. Reads text, so it needs no compiler; a function that a
table names counts as called."""
import os
import re

NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
# The head of a function stands in the first column, its brace alone below.
FUNCTION = re.compile(r"^(?!#)([A-Za-z_][^;{}=\n]*?)\b(\w+)\([^;{}]*\)[ \t]*\n\{(.*?)\n\}", re.M | re.S)
NAME = re.compile(r"\bpki_\w+")


def code_of(path):
    with open(path, encoding="utf-8") as file:
        return NOT_CODE.sub(lambda match: "\n" * match.group().count("\n"), file.read())


def sources(tree, folder):
    for where, _, names in os.walk(os.path.join(tree, folder)):
        for name in sorted(names):
            if name.endswith((".c", ".h")):
                yield os.path.relpath(os.path.join(where, name), tree)


def calls(tree, folder):
    """{(file, other file): names of functions of the other one that it names}"""
    text = {path: code_of(os.path.join(tree, path)) for path in sources(tree, folder)}
    home = {}
    for path, code in text.items():
        for head, name, _ in FUNCTION.findall(code):
            if path.endswith(".h") or "static" not in head.split():
                home[name] = path
    found = {}
    for path, code in text.items():
        bodies = code if path.endswith(".c") else "\n".join(body for _, _, body in FUNCTION.findall(code)) # of a header not what it declares
        own = {name for _, name, _ in FUNCTION.findall(code)}
        for name in set(NAME.findall(bodies)) - own:
            if name in home:
                found.setdefault((path, home[name]), []).append(name)
    return found


def circles(arrows):
    """The groups of files that reach one another over `arrows` (pairs), each sorted."""
    after = {}
    for source, target in arrows:
        after.setdefault(source, set()).add(target)

    def reached(start):
        seen, ahead = set(), [start]
        while ahead:
            for node in after.get(ahead.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    ahead.append(node)
        return seen

    reach = {node: reached(node) for node in after}
    return sorted({tuple(sorted(b for b in reach[a] if a in reach.get(b, ()))) for a in reach if a in reach[a]})
