#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every symbol of lib/pickle.map has a manual page with the six sections and an example that calls it, no page is of anything else; the headers
describe every parameter by @param and every result by @return; every environment variable stands in pickle(7), and neither mandoc nor man (where
they are) finds fault with a page.

usage: manpages.py TREE PAGES | manpages.py --programs FOLDER NAME... | manpages.py --self-test
"""
import os
import re
import shutil
import subprocess
import sys

from planted import report, self_test

SECTIONS = ("NAME", "SYNOPSIS", "DESCRIPTION", "RETURN VALUE", "EXAMPLE", "SEE ALSO")
DECLARATION = re.compile(r"(?:/\*\*((?:(?!\*/).)*)\*/\s*)?PK_API ([^;(]*?)(\w+)\(([^;]*)\);", re.S)


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def lint(pages):
    """What the formatters of this machine say about pages; no word is good."""
    env = dict(os.environ, LC_ALL="C.UTF-8", MANWIDTH="100")
    if shutil.which("mandoc"):
        run = subprocess.run(["mandoc", "-T", "lint", "-W", "warning"] + pages, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, check=False)
        yield from run.stdout.decode().splitlines()
    if shutil.which("man"):
        for page in pages:
            run = subprocess.run(["man", "--warnings", "-l", page], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, env=env, check=False)
            yield from run.stderr.decode().splitlines()


def check_page(name, path, sections):
    page = read(path)
    for section in sections:
        match = re.search(r"^\.SH %s\n((?:(?!\.SH ).*\n)*)" % section, page, re.M)
        if match is None or not match.group(1).strip():
            yield "%s: no section %s" % (os.path.basename(path), section)
    if ".SH NAME\n%s \\- " % name.replace("-", "\\-") not in page:
        yield "%s: it is not the page of %s" % (os.path.basename(path), name)
    example = re.search(r"^\.SH EXAMPLE\n((?:(?!\.SH ).*\n)*)", page, re.M)
    if example and not re.search(r"\b%s\(" % name, example.group(1)):
        yield "%s: its example does not call it" % os.path.basename(path)
    if "RETURN VALUE" in sections and not re.search(r"^\\fB.*\b%s\(" % name, page, re.M):
        yield "%s: no prototype" % os.path.basename(path)


def check_header(path):
    """What each function's comment says of its parameters and of what it returns."""
    for comment, kind, name, parameters in DECLARATION.findall(read(path)):
        wanted = {re.search(r"(\w+)\W*$", p).group(1) for p in parameters.split(",") if p.strip() != "void"}
        described = set(re.findall(r"@param (\w+)  +\S", comment))
        for parameter in sorted(wanted - described):
            yield "%s: %s: no @param %s" % (os.path.basename(path), name, parameter)
        for parameter in sorted(described - wanted):
            yield "%s: %s: @param %s is not a parameter" % (os.path.basename(path), name, parameter)
        if (kind.strip() != "void") != bool(re.search(r"@return \S", comment)):
            yield "%s: %s: %s" % (os.path.basename(path), name, "@return, but it is void" if kind.strip() == "void" else "no @return")


def check(tree, pages):
    include = os.path.join(tree, "include/pickle")
    for header in sorted(os.listdir(include)):
        yield from check_header(os.path.join(include, header))
    symbols = set(re.findall(r"^\s+(pk_\w+);", read(tree, "lib/pickle.map"), re.M))
    folder = os.path.join(pages, "man3")
    present = {f[:-2] for f in os.listdir(folder) if not os.path.islink(os.path.join(folder, f))}
    for name in sorted(symbols - present):
        yield "%s has no page" % name
    for name in sorted(present - symbols):
        yield "%s.3: lib/pickle.map does not have it" % name
    for name in sorted(f for f in os.listdir(folder) if not os.path.exists(os.path.join(folder, f))):
        yield "%s leads nowhere" % name
    for name in sorted(present):
        yield from check_page(name, os.path.join(folder, name + ".3"), SECTIONS)
    overview = read(pages, "man7/pickle.7")
    table = re.search(r"^## Environment\n(.*?)(?=^## |\Z)", read(tree, "README.md"), re.S | re.M)
    variables = set(re.findall(r"`(PK_\w+)`", " ".join(re.findall(r"^\|([^|]*)\|", table.group(1), re.M)) if table else ""))
    for name in sorted(variables):
        if "\\fB%s\\fR" % name not in overview:
            yield "pickle.7: %s is not there" % name
    for name in sorted(symbols):
        if "\\fB%s\\fR" % name not in overview:
            yield "pickle.7: %s is not among the calls" % name
    if not symbols or not variables:
        yield "%d symbols, %d variables were found" % (len(symbols), len(variables))
    yield from lint([os.path.join(folder, name + ".3") for name in sorted(present)] + [os.path.join(pages, "man7/pickle.7")])


def check_programs(folder, names):
    for name in names:
        path = os.path.join(folder, name + ".1")
        if not os.path.exists(path):
            yield "%s has no page" % name
            continue
        yield from check_page(name, path, ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"))
        if not re.search(r"^\.TP\n\\fB\\-[\\\w].*\n\S", read(path), re.M):
            yield "%s.1: no option" % name
        yield from lint([path])


PAGE = """.TH "pk_one" "3" "2026-01-01" "pickle" "libpickle"
.SH NAME
pk_one \\- does one thing
.SH SYNOPSIS
\\fBint pk_one(void);\\fR
.SH DESCRIPTION
It does.
.SH RETURN VALUE
One.
.SH EXAMPLE
.nf
int one = pk_one();
.fi
.SH SEE ALSO
\\fBpickle\\fR(7)
"""
OVERVIEW = PAGE.replace('"3"', '"7"').replace("pk_one(void)", "none").replace("It does.", "\\fBPK_ONE\\fR and \\fBpk_one\\fR(3)")
HEADER = """/**
 * One.
 *
 * @param a  this
 * @param b  that
 * @return one
 */
PK_API const int *pk_one(int a, const char *b);

/** Two. */
PK_API void pk_two(void);
"""
TREE = {"include/pickle/one.h": HEADER,
        "lib/pickle.map": "global:\n    pk_one;\n", "README.md": "## Environment\n| `PK_ONE` | one |\n## More\n", "pages/man3/pk_one.3": PAGE,
        "pages/man7/pickle.7": OVERVIEW}
PLANTED = [
    (None, {}),
    ("pk_two has no page", {"lib/pickle.map": "    pk_one;\n    pk_two;\n"}),
    ("pk_two.3: lib/pickle.map does not", {"pages/man3/pk_two.3": PAGE.replace("pk_one", "pk_two")}),
    ("no section RETURN VALUE", {"pages/man3/pk_one.3": PAGE.replace(".SH RETURN VALUE\nOne.\n", "")}),
    ("no section RETURN VALUE", {"pages/man3/pk_one.3": PAGE.replace("\nOne.\n", "\n")}),
    ("not the page of pk_one", {"pages/man3/pk_one.3": PAGE.replace("pk_one \\-", "pk_won \\-")}),
    ("no prototype", {"pages/man3/pk_one.3": PAGE.replace("pk_one(void)", "pk_won(void)")}),
    ("PK_TWO is not there", {"README.md": TREE["README.md"].replace("`PK_ONE`", "`PK_ONE` `PK_TWO`")}),
    ("not among the calls", {"pages/man7/pickle.7": OVERVIEW.replace("pk_one\\fR(3)", "pk_won\\fR(3)")}),
    ("no section EXAMPLE", {"pages/man3/pk_one.3": PAGE.replace(".SH EXAMPLE\n.nf\nint one = pk_one();\n.fi\n", "")}),
    ("does not call it", {"pages/man3/pk_one.3": PAGE.replace("int one = pk_one()", "int one = pk_only_one()")}),
    ("pk_one: no @param b", {"include/pickle/one.h": HEADER.replace(" * @param b  that\n", "")}),
    ("pk_one: no @param b", {"include/pickle/one.h": HEADER.replace("b  that", "b")}),
    ("pk_one: @param c is not", {"include/pickle/one.h": HEADER.replace("b  that", "c  that")}),
    ("pk_one: no @return", {"include/pickle/one.h": HEADER.replace(" * @return one\n", "")}),
    ("pk_two: @return, but", {"include/pickle/one.h": HEADER.replace("Two.", "Two. @return two")}),
    ("pk_three: no @return", {"include/pickle/one.h": HEADER + "PK_API int pk_three(void);\n"}),
    ("0 symbols", {"lib/pickle.map": "", "pages/man3/pk_one.3": PAGE}),
]
if shutil.which("mandoc"):
    PLANTED.append(("WARNING", {"pages/man3/pk_one.3": PAGE + ".PP\n.SH EMPTY\n.IPX\n"}))


def main():
    if sys.argv[1:] == ["--self-test"]:
        cases = [(expected, {**TREE, **changes}) for expected, changes in PLANTED]
        sys.exit(1 if self_test("manpages", cases, lambda tree: check(tree, os.path.join(tree, "pages"))) else 0)
    if len(sys.argv) > 3 and sys.argv[1] == "--programs":
        problems = list(check_programs(sys.argv[2], sys.argv[3:]))
    elif len(sys.argv) == 3:
        problems = list(check(sys.argv[1], sys.argv[2]))
    else:
        sys.exit(__doc__)
    report("manual pages" if shutil.which("mandoc") or shutil.which("man") else "manual pages, looked at by no formatter", problems)


main()
