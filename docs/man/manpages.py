#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Manual pages, section 3, from the public headers; pickle(7) from pickle.7.in and README.md's table; a program's page from its
template and what its --help says.

usage: manpages.py library TREE OUT          OUT/man3/*.3 and OUT/man7/pickle.7
       manpages.py program TEMPLATE PROGRAM VERSION OUT

A header's own words are the page: nothing is added but where a thing stands. What @return says by "the errors common to all" (the header's) and
by "as pk_other" is written out. The example of a page is the first function of docs/man/examples.c that calls what the page is about. A function
without @return or example is an error, as one whose prototype cannot be read is.
"""
import collections
import datetime
import os
import re
import subprocess
import sys
import textwrap

HEADERS = ("base", "comm", "p2p", "coll", "mem", "stream", "inspect", "survive")
EVERYWHERE = {"pk_result_t", "pk_dtype_t", "pk_stream_t", "pk_comm_t"} # in pickle(7), not on every page
COMMON_ERRORS = "Errors common to all:"
EXAMPLE = re.compile(r"^(?:/\*(?:(?!\*/).)*\*/\n)?static [^;{}]*\)\n\{\n.*?^\}\n", re.S | re.M)
DOCUMENTED = re.compile(r"/\*\*((?:(?!\*/).)*)\*/\s*(PK_API[^;]*;|typedef [^;{]*\{[^}]*\}[^;]*;|typedef [^;{]*;|enum \{[^}]*\};)", re.S)
DEFINE = re.compile(r"^#define (PK_\w+)(.*)$", re.M)


Book = collections.namedtuple("Book", "headers names meanings examples") # what every page may need


class Page:
    """Lines of one page in the man macros; what goes in is plain text."""

    def __init__(self, name, section, date, source, functions):
        self.lines = ['.TH "%s" "%s" "%s" "%s" "%s"' % (name, section, date, source, "libpickle"), ".nh", ".ad l"]
        self.functions = functions
        self.own = name

    def inline(self, text):
        text = text.replace("\\", "\\e")
        text = re.sub(r"`([^`]+)`", r"\\fI\1\\fR", text)
        text = re.sub(r"\bpk_\w+(\(\))?", self.reference, text)
        text = re.sub(r"(?<![\w/])(PK_[A-Z0-9_]+)\b", r"\\fB\1\\fR", text)
        return re.sub(r"\\fI\\f[BR](\w+)\\fR(\(3\))?\\fR", r"\\fI\1\\fR", text)

    def reference(self, match):
        name = match.group().rstrip("()")
        if name == self.own:
            return "\\fB%s\\fR" % name
        return "\\fB%s\\fR%s" % (name, "(3)" if name in self.functions else "")

    def section(self, title):
        self.lines.append(".SH %s" % title)

    def text(self, text):
        for line in textwrap.wrap(self.inline(" ".join(text.split())), 100, break_long_words=False, break_on_hyphens=False):
            self.lines.append("\\&" + line if line[0] in ".'" else line)

    def paragraph(self, text):
        self.lines.append(".PP")
        self.text(text)

    def entry(self, tag, text):
        self.lines += [".TP", tag]
        self.text(text)

    def code(self, text):
        self.lines += [".PP", ".RS 4", ".nf"]
        for line in text.split("\n"):
            line = line.replace("\\", "\\e").replace("-", "\\-")
            self.lines.append("\\&" + line if line[:1] in (".", "'") else line)
        self.lines += [".fi", ".RE"]

    def blocks(self, blocks):
        for kind, text in blocks:
            (self.code if kind == "code" else self.paragraph)(text)

    def write(self, folder, file_name):
        os.makedirs(folder, exist_ok=True)
        body = [line for i, line in enumerate(self.lines) if not (line == ".PP" and self.lines[i - 1].startswith(".SH"))]
        with open(os.path.join(folder, file_name), "w", encoding="utf-8") as file:
            file.write("\n".join(body) + "\n")


def plain(comment):
    """The lines of a comment without stars."""
    return [re.sub(r"^\s*\*? ?", "", line).rstrip() if i else line.strip() for i, line in enumerate(comment.split("\n"))]


def paragraphs(lines):
    """("text" or "code", words) of lines; what is indented by four is code."""
    blocks, current, kind = [], [], "text"
    for line in lines + [""]:
        this = "code" if line.startswith("    ") else "text"
        if current and (not line.strip() or this != kind):
            blocks.append((kind, textwrap.dedent("\n".join(current)).rstrip()))
            current = []
        if line.strip():
            current.append(line)
            kind = this
    merged = []
    for kind, text in blocks:
        if merged and kind == "code" == merged[-1][0]:
            text = merged.pop()[1] + "\n" + text
        merged.append((kind, text))
    return merged


def tags(comment):
    """What stands before, {"param": [(name, text)], "return": text}, what stands behind."""
    text = re.sub(r"(?<=\S) (@(?:param|return)\b)", r"\n\1", "\n".join(plain(comment)))
    before, behind, found, current = [], [], {"param": [], "return": None}, None
    for line in text.split("\n"):
        match = re.match(r"@(param|return) (.*)", line)
        if match:
            current = match.group(1)
            if current == "param":
                names, _, rest = match.group(2).partition("  ")
                if not rest:
                    names, _, rest = match.group(2).partition(" ")
                found["param"].append((names.strip(), rest.strip()))
            else:
                found["return"] = match.group(2)
        elif current and line.startswith(" "):
            if current == "param":
                name, words = found["param"].pop()
                found["param"].append((name, words + " " + line.strip()))
            else:
                found["return"] += " " + line.strip()
        else:
            (behind if found["param"] or found["return"] is not None else before).append(line)
            current = None
    return paragraphs(before), found, paragraphs(behind)


def top_level(text, mark):
    """`text` cut at every `mark` that is not inside parentheses."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0 and text.startswith(mark, i):
            parts.append(text[start:i])
            start = i = i + len(mark)
            continue
        i += 1
    return parts + [text[start:]]


def returned(text):
    """([(result or None, words)], what follows): "PK_OK; PK_ERR_ARG (null). Never blocks." """
    first, *rest = top_level(text, ". ")
    entries = []
    for part in top_level(first.rstrip("."), ";"):
        part = part.strip()
        match = re.match(r"^(PK_\w+)(?: \((.*)\)|, (?!or |and )(.*))?$", part, re.S)
        if match:
            entries.append((match.group(1), match.group(2) or match.group(3)))
        elif part:
            entries.append((None, part))
    return entries, ". ".join(rest).strip()


class Header:
    def __init__(self, folder, name):
        self.name = name
        with open(os.path.join(folder, name + ".h"), encoding="utf-8") as file:
            text = file.read()
        about = re.search(r"/\*\*\n \* @file \S+\n(.*?)\*/", text, re.S)
        self.about = paragraphs(plain("\n" + about.group(1)))
        self.functions, self.types, self.values = [], {}, []
        for match in DOCUMENTED.finditer(text, about.end()):
            comment, item = match.group(1), match.group(2)
            if item.startswith("PK_API"):
                self.functions.append((re.search(r"(\w+)\(", item).group(1), comment, item))
            elif item.startswith("typedef"):
                name = re.search(r"(\w+)\s*;$", item) or re.search(r"\(\*(\w+)\)", item)
                self.types[re.search(r"\(\*(\w+)\)", item).group(1) if "(*" in item else name.group(1)] = source(comment, item)
            else:
                self.values.append((re.findall(r"^\s+(PK_\w+)", item, re.M), source(comment, item)))
        self.values += [([match.group(1)], source("", match.group())) for match in DEFINE.finditer(text) if match.group(2).strip()]

    def common(self, mark):
        """The paragraph of the file's comment that begins with `mark`, without it."""
        for _, text in self.about:
            if text.startswith(mark):
                return " ".join(text[len(mark):].split())
        return None


def source(comment, item):
    """A declaration as a reader wants to see it."""
    comment = " ".join(" ".join(plain(comment)).split())
    return ("/* %s */\n" % comment if comment else "") + item.replace("/**< ", "/* ")


def types_of(header, headers, prototype):
    """Definitions that a caller of this function needs: structures and enumerations, and the values that these name."""
    found = []
    for name in re.findall(r"\bpk_\w+_t\b", prototype):
        for other in headers:
            if name not in other.types or name in EVERYWHERE or "{" not in other.types[name] and "(*" not in other.types[name]:
                continue
            text = other.types[name]
            words = set(re.findall(r"PK_[A-Z0-9_]+", text))
            for names, value in other.values:
                used = any(n == w or w.endswith("_") and n.startswith(w) for n in names for w in words)
                initialiser = name == "pk_comm_config_t" and "PK_COMM_CONFIG_INIT" in names
                if (used or initialiser) and value not in found:
                    found.append(value)
            if text not in found:
                found.append(text)
    return found


def results(header):
    """{name: meaning} of pk_result_t."""
    return dict(re.findall(r"(PK_\w+) = \d+,?\s*/\*\s*(.*?)\s*\*/", header.types["pk_result_t"]))


def first_words(comment):
    sentence = re.split(r"(?<=[a-z)\]`])[.;:](?:\s|$)", " ".join(" ".join(plain(comment)).split()))[0]
    sentence = sentence.split(" @")[0].replace("`", "").strip().rstrip(".,")
    return sentence[:1].lower() + sentence[1:] if not sentence[:2].isupper() else sentence


def prototype_lines(item):
    words = " ".join(item.replace("PK_API ", "").split())
    head, _, rest = words.partition("(")
    lines = textwrap.wrap(re.sub(r"(?<!,) ", "\0", rest), 74 - len(head), break_long_words=False) # at commas alone
    return (head + "(" + ("\n" + " " * (len(head) + 1)).join(lines)).replace("\0", " ")


def written_out(entries, header, headers):
    """The entries with those that they refer to; what a function says of a result itself stands for what the others say of it."""
    own = {result for result, _ in entries}
    for result, words in entries:
        other = re.fullmatch(r"as (pk_\w+)", words or "")
        text = None
        if words == "the errors common to all":
            text = header.common(COMMON_ERRORS)
        elif other:
            text, header_of = next((tags(c)[1]["return"], h) for h in headers for n, c, _ in h.functions if n == other.group(1))
            yield from ((r, w) for r, w in written_out(returned(text)[0], header_of, headers) if r is None or r not in own)
            continue
        if text is None:
            yield result, words
        else:
            yield from ((r, w) for r, w in returned(text)[0] if r is None or r not in own)


def return_section(page, text, meanings, header, headers):
    page.section("RETURN VALUE")
    entries, rest = returned(text)
    for result, words in written_out(entries, header, headers):
        if result:
            meaning = meanings[result]
            if words and len(words.split()) < 3: # "null" alone says too little
                meaning = "%s: %s" % (re.split(r"[;,]", meaning)[0], words)
            elif words:
                meaning = words
            page.entry("\\fB%s\\fR" % result, meaning)
        else:
            page.paragraph(words[:1].upper() + words[1:] + ".")
    return rest


def function_page(out, function, header, book, stamp):
    name, comment, item = function
    page = Page(name, "3", stamp[0], stamp[1], book.names)
    before, found, behind = tags(comment)
    page.section("NAME")
    page.lines.append("%s \\- %s" % (name, first_words(comment)))
    page.section("SYNOPSIS")
    page.lines += [".nf", "\\fB#include <pickle/%s.h>\\fR" % header.name, ".PP"]
    page.lines += ["\\fB%s\\fR" % line.replace("-", "\\-") for line in prototype_lines(item).split("\n")]
    page.lines += [".fi", ".PP", "Compile and link with \\fB$(pkg\\-config \\-\\-cflags \\-\\-libs pickle)\\fR."]
    page.section("DESCRIPTION")
    page.blocks([(kind, re.sub(r"\s*\bSince \d\.\d\.", "", text)) for kind, text in before])
    for argument, words in found["param"]:
        page.entry("\\fI%s\\fR" % argument, words)
    text = found["return"]
    if text is None and not item.startswith("PK_API void "):
        sys.exit("%s.h: %s: its comment has no @return" % (header.name, name))
    since = re.search(r"Since (\d\.\d)\.", comment)
    if since is None:
        sys.exit("%s.h: %s: its comment does not say since when it is there" % (header.name, name))
    meanings = book.meanings if "pk_comm_t *comm, pk_stream_t stream" in " ".join(item.split()) else dict(book.meanings, PK_OK="done")
    rest = return_section(page, re.sub(r"\s*Since \d\.\d\.", "", text or "nothing"), meanings, header, book.headers)
    after = [(kind, re.sub(r"\s*\bSince \d\.\d\.", "", words)) for kind, words in [("text", rest)] + behind]
    after = [(kind, words) for kind, words in after if words.strip()]
    after += [block for block in header.about[1:] if concerns(block[1], item)]
    if after:
        page.section("NOTES")
        page.blocks(after)
    types = types_of(header, book.headers, item)
    if types:
        page.section("TYPES")
        for text in types:
            page.code(text)
    page.section("VERSIONS")
    page.text(versions(since.group(1), stamp[1]))
    page.section("EXAMPLE")
    page.code(example(name, book.examples))
    see_also(page, comment, header, book.names)
    page.write(os.path.join(out, "man3"), name + ".3")
    return [t for t in re.findall(r"\bpk_\w+_t\b", item) if any(t in h.types and h.types[t] in types for h in book.headers)]


def versions(since, source):
    """`since` is "0.2", `source` what the page is of: "pickle 0.2.0"."""
    number, now = ([int(n) for n in text.split(".")] for text in (since, source.split()[1]))
    return "Since %s." % since if number <= now else "Comes with release %s, which is not made yet." % since


def example(name, examples):
    for text in examples:
        if re.search(r"\b%s\(" % name, text):
            return text.rstrip("\n")
    sys.exit("docs/man/examples.c: no function calls %s" % name)


def concerns(text, prototype):
    """Is this paragraph of the file's comment about this call?"""
    if text.startswith("Reductions"):
        return "pk_op_t" in prototype
    if text.startswith("V-forms"):
        return "counts" in prototype
    return not text.startswith(COMMON_ERRORS)


def see_also(page, comment, header, names):
    page.section("SEE ALSO")
    others = [n for n in dict.fromkeys(re.findall(r"\bpk_\w+", comment)) if n in names and n != page.own]
    others += [n for n, _, _ in header.functions if n != page.own and n not in others]
    others += [n for n in ("pk_last_error", "pk_strerror") if n != page.own and n not in others]
    page.lines.append(", ".join("\\fB%s\\fR(3)" % n for n in others) + ", \\fBpickle\\fR(7)")


def environment(readme):
    """(variables, meaning, default) of README.md's table."""
    section = re.search(r"^## Environment\n(.*?)(?=^## |\Z)", readme, re.S | re.M).group(1)
    for line in section.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `PK_") and len(cells) == 3:
            yield re.findall(r"`(PK_\w+)`", cells[0]), cells[1], cells[2]


def overview(out, tree, headers, names, stamp):
    """pickle(7): the template's text, with the table of the environment, the types that are everywhere, and the list of calls."""
    page = Page("pickle", "7", stamp[0], stamp[1], names)
    with open(os.path.join(tree, "docs/man/pickle.7.in"), encoding="utf-8") as file:
        template = file.read()
    with open(os.path.join(tree, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    for line in template.split("\n"):
        if line == "@ENVIRONMENT@":
            for variables, meaning, default in environment(readme):
                page.entry(", ".join("\\fB%s\\fR" % v for v in variables), meaning + "." + (" Default: %s." % default if default else ""))
        elif line == "@FUNCTIONS@":
            for header in headers:
                page.entry("\\fB<pickle/%s.h>\\fR" % header.name, ", ".join(n for n, _, _ in header.functions))
        elif line == "@TYPES@":
            for header in headers:
                for name in sorted(EVERYWHERE & set(header.types)):
                    page.code(header.types[name])
        elif not line.startswith('.\\"'):
            page.lines.append(line)
    page.lines = [line for line in page.lines if line]
    page.write(os.path.join(out, "man7"), "pickle.7")


def changed(*paths):
    """The day of the latest change of these; SOURCE_DATE_EPOCH goes before, for builds that must repeat."""
    when = os.environ.get("SOURCE_DATE_EPOCH")
    when = int(when) if when else max(int(os.path.getmtime(path)) for path in paths)
    return datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%d")


def library(tree, out):
    folder = os.path.join(tree, "include/pickle")
    headers = [Header(folder, name) for name in HEADERS]
    names = {n for header in headers for n, _, _ in header.functions}
    with open(os.path.join(folder, "base.h"), encoding="utf-8") as file:
        version = ".".join(re.findall(r"^#define PK_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", file.read(), re.M))
    with open(os.path.join(tree, "docs/man/examples.c"), encoding="utf-8") as file:
        book = Book(headers, names, results(headers[0]), EXAMPLE.findall(file.read()))
    aliases = {}
    for header in headers:
        stamp = (changed(os.path.join(folder, header.name + ".h")), "pickle " + version)
        for function in header.functions:
            for name in function_page(out, function, header, book, stamp):
                aliases.setdefault(name, function[0])
    for name, page in aliases.items():
        link = os.path.join(out, "man3", name + ".3")
        if not os.path.islink(link):
            os.symlink(page + ".3", link)
    overview(out, tree, headers, names, (changed(os.path.join(tree, "README.md")), "pickle " + version))
    print("%d pages of functions, %d of types, pickle(7)" % (len(names), len(aliases)))


OPTION = re.compile(r"^ {2,6}(?:(-.*?)(?:(?:  +|(?<=\]) )(\S.*))|(-.{,30}))$")
WORD = re.compile(r"^ {2,4}(\w+)  +(\S.*)()$") # a mode, or the number of an experiment


def options(page, lines):
    """An entry for each option and each mode of --help; deeper lines go on. Other lines are text."""
    entry, text = None, []

    def flush():
        if entry:
            page.entry("\\fB%s\\fR" % entry.replace("-", "\\-"), " ".join(text))
        elif any(text):
            page.paragraph(" ".join(text))

    for line in lines:
        match = OPTION.match(line) or WORD.match(line)
        if match:
            flush()
            entry, text = match.group(1) or match.group(3), [match.group(2)] if match.group(2) else []
        elif line.startswith("       "):
            text.append(line.strip())
        else:
            flush()
            entry, text = None, [line.strip()]
    flush()


def program(template, command, version, out):
    name = os.path.basename(template).split(".")[0]
    told = subprocess.run([command, "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30,
                          check=True).stdout.decode().rstrip("\n").split("\n")
    page = Page(name, "1", changed(template, command), "pickle " + version, set())
    with open(template, encoding="utf-8") as file:
        for line in file.read().split("\n"):
            if line == "@OPTIONS@":
                options(page, told[1:])
            elif line == "@USAGE@":
                page.lines += [".nf", told[0].replace("usage: ", "").replace("-", "\\-"), ".fi"]
            elif line and not line.startswith('.\\"'):
                page.lines.append(line)
    page.write(out, name + ".1")


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "library":
        library(sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 6 and sys.argv[1] == "program":
        program(*sys.argv[2:])
    else:
        sys.exit(__doc__)


main()
