# SPDX-License-Identifier: Apache-2.0
"""Means of ratios, and how sure they are."""
import math
import statistics

T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 11: 2.20, 12: 2.18, 13: 2.16, 14: 2.145,
       15: 2.13, 20: 2.09, 30: 2.04, 60: 2.00}


def t95(degrees):
    """Of Student's t, two-sided: the table's next smaller number of degrees, which is the wider interval."""
    return T95[max(known for known in T95 if known <= degrees)]


def interval(samples):
    """(geometric mean, its 95 % interval) of ratios."""
    logs = [math.log(sample) for sample in samples]
    middle = statistics.fmean(logs)
    half = t95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)
