/* SPDX-License-Identifier: Apache-2.0 */
/* The picture: four bars a library. Drawn by gnuplot, if there is one. */
#include "attention.h"

#include <stdio.h>
#include <stdlib.h>

static void plot(FILE *out, const struct job *job, const char *prefix, const char *terminal, const char *suffix)
{
    double layers = job->shape.layers;

    fprintf(out, "set terminal %s\nset output '%s.%s'\n", terminal, prefix, suffix);
    fprintf(out, "set title 'Attention beside an allgather of keys and values, %d ranks, %s'\n", job->shape.ranks,
            job->compute->name);
    fprintf(
        out,
        "set ylabel 'ms a layer'\nset yrange [0:*]\nset grid y\nset style data histograms\nset style histogram clustered gap 1\n"
        "set style fill solid 0.9 border -1\nset boxwidth 0.9\nset key outside bottom center horizontal\n");
    fprintf(out, "$times << END\n");
    for (int l = 0; l < job->library_count; l++) {
        const struct times *t = &job->times[l];

        fprintf(out, "\"%s\" %g %g %g %g\n", job->libraries[l].name, t->attention / layers, t->communication / layers,
                t->in_turn / layers, t->overlapped / layers);
    }
    fprintf(
        out,
        "END\nplot $times using 2:xtic(1) title 'attention alone' lc rgb '#7f8c8d', '' using 3 title 'communication alone' lc rgb"
        " '#2980b9', '' using 4 title 'one after the other' lc rgb '#e67e22', '' using 5 title 'overlapped' lc rgb '#27ae60'\n");
}

bool picture(const struct job *job, const char *prefix)
{
    FILE *out;

    if (system("command -v gnuplot >/dev/null 2>&1") != 0)
        return false;
    out = popen("gnuplot", "w");
    if (out == NULL)
        return false;
    plot(out, job, prefix, "pngcairo size 900,560", "png");
    plot(out, job, prefix, "svg size 900,560", "svg");
    return pclose(out) == 0;
}
