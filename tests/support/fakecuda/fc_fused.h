/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-ins for fused kernels share. */
#ifndef FC_FUSED_H
#define FC_FUSED_H

#include "fc_kernels.h"

/* One launch. Halves of this rank's inbox by source, and of the other ranks' inboxes that this rank writes, each for both parities. */
struct fc_fused {
    const struct fc_launch *l;
    const struct pki_fused_args *args;
    const void *abort_word;
    struct pki_fused_words *words;
    char *mine[PKI_FUSED_RANKS][2], *theirs[PKI_FUSED_RANKS][2];
    unsigned round;
    bool begun; /* its headers are out */
    bool quiet; /* another kernel follows and tells the CPU */
    bool fell;  /* the operation is done in another way */
};

bool fc_is_other(const struct fc_fused *f, uint32_t rank);
/* False: the kernel was told to leave, or that others do it. */
bool fc_fused_look(struct fc_fused *f);
void fc_cells_write(void *cells, uint64_t pair, uint64_t data, uint32_t flag);
bool fc_cells_read(void *cells, uint64_t pair, uint32_t flag, uint64_t *data);
/* False: it has nothing to do, and leaves no word. */
bool fc_fused_open(const struct fc_launch *l, struct fc_fused *f);
bool fc_fused_begin(struct fc_fused *f);     /* sends the headers */
bool fc_fused_headers(struct fc_fused *f);   /* waits for the others' */
bool fc_fused_all_reach(struct fc_fused *f); /* headers are here: do all ranks have all buffers mapped? */
/* Where `bytes` of rank p's buffer are, as its header says in `pair`; of this rank's own, which is at `own`. */
char *fc_fused_place(struct fc_fused *f, uint32_t p, unsigned pair, uint64_t own, uint64_t at, uint64_t bytes);
void fc_fused_raise(struct fc_fused *f, uint32_t epoch, uint32_t which);
bool fc_fused_await(struct fc_fused *f, uint32_t epoch, uint32_t which);
void fc_fused_end(struct fc_fused *f, bool done, uint32_t last_epoch);

#endif
