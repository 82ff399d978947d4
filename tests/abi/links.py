#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Links of Markdown files and of pages of HTML lead somewhere: the file is there, and so is the heading that is named. What begins
with a scheme (https:) is not asked for.

usage: links.py FOLDER | links.py --self-test
"""
import html.parser
import os
import re
import urllib.parse

from planted import main

LEFT_OUT = ("_prefix", "demo-out", "__pycache__")
FENCED = re.compile(r"^```.*?^```$", re.S | re.M)
CODE = re.compile(r"`[^`\n]*`|^    .*$", re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.M)


def files_of(tree):
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "build")) and name not in LEFT_OUT)
        for name in sorted(names):
            if name.endswith((".md", ".html")):
                yield os.path.join(folder, name)


def anchor(heading):
    """As GitHub makes it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "").lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


class Page(html.parser.HTMLParser):
    """Links and anchors of a page of HTML."""

    def __init__(self):
        super().__init__()
        self.links, self.anchors = [], set()

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def read(path):
    """(links, anchors)"""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".html"):
        page = Page()
        page.feed(text)
        return page.links, page.anchors
    text = FENCED.sub("", text)
    return LINK.findall(CODE.sub("", text)), {anchor(heading) for heading in HEADING.findall(text)}


def check(tree):
    known = {}

    def content(path):
        path = os.path.normpath(path)
        if path not in known:
            known[path] = read(path)
        return known[path]

    for path in files_of(tree):
        for link in content(path)[0]:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = os.path.join(os.path.dirname(path), urllib.parse.unquote(parts.path)) if parts.path else path
            where = os.path.relpath(path, tree)
            if not os.path.exists(target):
                yield "%s: %s is not there" % (where, link)
            elif parts.fragment and target.endswith((".md", ".html")) and parts.fragment not in content(target)[1]:
                yield "%s: %s has no such heading" % (where, link)


CASES = [
    (None, {"README.md": "[a](docs/a.md) [b](docs/a.md#two-words) [c](https://example.org/none) [d](docs)", "docs/a.md": "# One\n## Two `words`\n"}),
    ("README.md: docs/b.md is not there", {"README.md": "see [b](docs/b.md)", "docs/a.md": ""}),
    ("docs/a.md: ../gone.c is not there", {"docs/a.md": "![b](../gone.c)"}),
    ("README.md: #three has no such heading", {"README.md": "# Two\n[b](#three)"}),
    (None, {"README.md": "```c\nx[i](gone.c);\n```\n`y[i](gone.c)`\n\n    z[i](gone.c);\n", "build/a.md": "[a](gone.md)"}),
    (None, {"a.html": '<a href="b.html#x">b</a> <img src="c.png">', "b.html": '<p id="x">', "c.png": ""}),
    ("a.html: b.html#y has no such heading", {"a.html": '<a href="b.html#y">b</a>', "b.html": '<p id="x">'}),
    ("a.html: c.png is not there", {"a.html": '<img src="c.png">'}),
]


if __name__ == "__main__":
    main("links", __doc__, CASES, check)
