/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of training jobs: compute by arithmetic, communication by the simulator. Everything here is a prediction. */
#ifndef SIM_PATTERNS_H
#define SIM_PATTERNS_H

#include "machine.h"

struct sim_model { /* a transformer */
    int layers, hidden, experts;
    double tokens;     /* a rank and step in weak scaling; all together in strong scaling */
    double efficiency; /* of the machine's tflops that matrix products reach */
};

struct sim_step_time {
    double step_us;
    double compute_us;
    double exposed_us; /* communication that compute did not hide */
    double total_us;   /* all communication, hidden or not */
};

struct sim_memo;                      /* what has been simulated for one machine */
struct sim_memo *sim_memo_make(void); /* NULL: no memory; free() it */

struct sim_pattern {
    const char *name, *what;
    bool (*step)(const struct sim_machine *machine, struct sim_memo *memo, const struct sim_model *model, int ranks,
                 struct sim_step_time *out);
};

extern const struct sim_pattern sim_patterns[]; /* name NULL at the end */

#endif
