# SPDX-License-Identifier: Apache-2.0
"""What rows of pickle-perf-overlap say, in sentences."""


def size_of(n):
    for unit, text in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit:
            return "%g %s" % (n / unit, text)
    return "%d B" % n


def has_figures(row):
    return all(isinstance(row[key], (int, float)) for key in ("ratio", "ratio_per_clock", "mhz_alone", "mhz_beside", "rate_alone_gbps", "rate_beside_gbps",
                                                               "lost_ms_per_gb"))


def clause(row):
    """What one library does to the computing, and the computing to its messages."""
    watts = ", %.0f to %.0f W" % (row["watts_alone"], row["watts_beside"]) if isinstance(row["watts_beside"], (int, float)) else ""
    return "by %s leave it %.1f %% of its cycles and %.1f %% of its speed (clock %.0f to %.0f MHz%s), go at %.0f of %.0f GB/s, and take %.2f ms of computing a GB" % (
        row["library"], 100 * row["ratio_per_clock"], 100 * row["ratio"], row["mhz_alone"], row["mhz_beside"], watts, row["rate_beside_gbps"],
        row["rate_alone_gbps"], row["lost_ms_per_gb"])


def verdict(rows):
    """Where libpickle's loss comes from: cycles, or the clock, which bare copies lower as well."""
    own = next((row for row in rows if row["library"] == "libpickle"), None)
    bare = next((row for row in rows if row["library"] == "bare copy"), None)
    if own is None:
        return ""
    if own["ratio_per_clock"] < 0.99:
        return "; libpickle's messages do take cycles here"
    fall = 100 - 100 * own["mhz_beside"] / own["mhz_alone"]
    if own["ratio"] >= 0.99 or fall < 1:
        return "; libpickle's cost next to nothing"
    beside = ", and bare copies, with no library, come to %.1f %%" % (100 * bare["ratio"]) if bare is not None else ""
    return "; what libpickle's cost is the clock, %.1f %% lower because the card is at its power limit%s" % (fall, beside)


def sentences(rows, least=0):
    """One for each kind of computing, operation and size (from `least` bytes on), in the order of the rows."""
    cases = {}
    for row in rows:
        if has_figures(row) and row["bytes"] >= least:
            cases.setdefault((row["compute"], row["operation"], row["bytes"]), []).append(row)
    return ["%s beside %s of %s: messages %s%s." % (compute, operation, size_of(n), "; ".join(clause(row) for row in same), verdict(same))
            for (compute, operation, n), same in cases.items()]
