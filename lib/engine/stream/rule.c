/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/stream/rule.h"

static bool take_channel(struct pki_rule_channels *channels)
{
    if (channels->held)
        return true;
    if (channels->left == 0)
        return false;
    channels->left--;
    channels->held = true;
    return true;
}

static bool waits(const struct pki_rule_part *p)
{
    return !p->seen && !p->follows;
}

/* May all that wait stand in a row? */
static bool may_stand(const struct pki_rule_part *parts, int n)
{
    int several = 0;

    for (int i = 0; i < n; i++)
        several += waits(&parts[i]);
    return several <= 1;
}

static bool any_by_kernel(const struct pki_rule_part *parts, int n)
{
    for (int i = 0; i < n; i++)
        if (!parts[i].seen && parts[i].by_kernel)
            return true;
    return false;
}

void pki_rule(const struct pki_rule_part *parts, int n, bool kernels, struct pki_rule_channels *channels,
              enum pki_rule_place *places)
{
    bool in_a_row = may_stand(parts, n) && !(kernels && any_by_kernel(parts, n));

    for (int i = 0; i < n; i++) {
        places[i] = PKI_RULE_BESIDE;
        if (parts[i].seen && !(kernels && parts[i].by_kernel) && take_channel(channels))
            places[i] = PKI_RULE_COPY_FIRST;
    }
    for (int i = 0; i < n; i++)
        if (places[i] == PKI_RULE_BESIDE && !parts[i].seen && in_a_row && take_channel(channels))
            places[i] = PKI_RULE_COPY;
}
