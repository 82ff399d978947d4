/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks' buffers hold while a plan is checked: 32-bit numbers that are summed. */
#ifndef SIM_DATA_H
#define SIM_DATA_H

#include "world.h"

struct sim_data {
    const struct sim_world *world;
    const struct pki_layout *layout;
    uint32_t **in, **out, **scratch; /* [size] */
    uint32_t **stage;                /* [nsteps] of a receive: what its send has read; it may change its source then */
    size_t scratch_block;
    size_t chunk;
};

bool sim_data_make(struct sim_data *data, const struct sim_world *world, const struct pki_layout *layout, size_t chunk);
void sim_data_free(struct sim_data *data);
/* What chunk `chunk` of a step that has ended did: a send reads its source, a receive writes what its send has read. False: no
 * memory. */
bool sim_data_do(struct sim_data *data, const struct sim_step *step, uint32_t chunk);
/* Every rank has what the collective promises; says on stderr which has not. */
bool sim_data_right(const struct sim_data *data);

#endif
