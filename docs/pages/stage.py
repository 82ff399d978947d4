#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Put together what Sphinx makes pages of: README.md as the first one, the pages of docs, and whatever these lead to. Files keep their
places, so that their links stay as they are. A link to a folder leads to a page that lists it.

usage: stage.py TREE OUT
"""
import os
import re
import shutil
import sys

GUIDES = ["docs/" + name for name in ("guide", "python", "nccl", "switchml", "survive", "performance", "wire")]
ABOUT = ["CHANGELOG", "CONTRIBUTING", "SECURITY"]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.S | re.M)
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
TOCTREE = "\n```{toctree}\n:hidden:\n:caption: %s\n\n%s\n```\n"


class Stage:
    def __init__(self, tree, out):
        self.tree, self.out = tree, out
        self.done = set()
        self.folders = []

    def at(self, path):
        return os.path.join(self.tree, path)

    def write(self, path, text):
        full = os.path.join(self.out, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)

    def page(self, path, name=None, more=""):
        """A page, and what it leads to."""
        if path in self.done:
            return
        self.done.add(path)
        with open(self.at(path), encoding="utf-8") as file:
            text = file.read()
        here, kept, parts = os.path.dirname(path), 0, []
        for code in CODE.finditer(text): # what looks like a link in there is none
            parts += [self.linked(text[kept:code.start()], here), code.group()]
            kept = code.end()
        parts.append(self.linked(text[kept:], here))
        self.write(name or path, "".join(parts) + more)

    def linked(self, text, here):
        return LINK.sub(lambda found: found.group(1) + self.target(found.group(2), here) + (found.group(3) or ""), text)

    def target(self, link, here):
        path = os.path.normpath(os.path.join(here, link))
        if path == "README.md":
            return os.path.relpath("index.md", here or ".")
        self.take(path)
        return os.path.join(link, "index.md") if os.path.isdir(self.at(path)) else link

    def take(self, path):
        if os.path.isdir(self.at(path)):
            self.folder(path)
        elif path.endswith(".md"):
            self.page(path)
        elif path not in self.done and os.path.exists(self.at(path)): # else Sphinx says that it is missing
            self.done.add(path)
            os.makedirs(os.path.dirname(os.path.join(self.out, path)), exist_ok=True)
            shutil.copyfile(self.at(path), os.path.join(self.out, path))

    def folder(self, path):
        if path in self.done:
            return
        self.done.add(path)
        self.folders.append(path + "/index")
        names = sorted(name for name in os.listdir(self.at(path)) if not name.startswith((".", "__")) and name != "build")
        lines, pages = [], []
        for name in names:
            inside = os.path.join(path, name)
            self.take(inside)
            is_folder = os.path.isdir(self.at(inside))
            lines.append("- [%s](%s)" % (name, name + "/index.md" if is_folder else name))
            if name.endswith(".md"):
                pages.append(name[:-3])
        more = TOCTREE % (path, "\n".join(pages)) if pages else ""
        self.write(path + "/index.md", "# %s\n\n%s\n%s" % (path, "\n".join(lines), more))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    stage = Stage(*sys.argv[1:])
    for path in GUIDES + ABOUT:
        stage.page(path + ".md")
    stage.page("README.md", "index.md")
    folders = "\n".join(sorted(stage.folders))
    with open(os.path.join(stage.out, "index.md"), "a", encoding="utf-8") as file:
        file.write(TOCTREE % ("Use", "\n".join(GUIDES)) + TOCTREE % ("About", "\n".join(ABOUT)) + TOCTREE % ("Sources", folders))


if __name__ == "__main__":
    main()
