/* SPDX-License-Identifier: Apache-2.0 */
/* The table of constants: its rows, and how tests set them. */
#include <criterion/criterion.h>
#include <string.h>

#include "tuning/tuning.h"

/* The row "part.name", of this process. */
static struct pki_tuning_row row_of(const char *part, const char *name)
{
    struct pki_tuning_row row;

    for (size_t i = 0; pki_tuning_row(&pki_agreed, i, &row); i++)
        if (strcmp(row.part, part) == 0 && strcmp(row.name, name) == 0)
            return row;
    cr_assert(false, "no row %s.%s", part, name);
    return row;
}

Test(tuning, every_row_once_with_the_value_of_the_table)
{
    struct pki_tuning_row row, other;
    size_t rows = 0;

    for (; pki_tuning_row(&pki_agreed, rows, &row); rows++) {
        cr_expect_eq(row.value, row.usual, "%s.%s", row.part, row.name);
        for (size_t i = 0; i < rows && pki_tuning_row(&pki_agreed, i, &other); i++)
            cr_expect(strcmp(row.part, other.part) != 0 || strcmp(row.name, other.name) != 0, "%s.%s twice", row.part, row.name);
    }
    cr_expect_gt(rows, 50);
    cr_expect_eq(row_of("wait", "spins").value, pki_tuning.wait.spins);
    cr_expect_eq(row_of("cpu", "around_bytes").value, pki_tuning.cpu.around_bytes);
    cr_expect_eq(row_of("coll", "hier_min_bytes").value, pki_agreed.coll.hier_min_bytes);
    cr_expect_eq(row_of("shm", "probe_every").value, PKI_SHM_PROBE_EVERY);
    cr_expect(row_of("shm", "probe_every").fixed && !row_of("shm", "cma").fixed);
}

Test(tuning, values_are_set)
{
    cr_expect_null(pki_tuning_override(""));
    cr_expect_null(pki_tuning_override("shm.cma=0,wait.sleep_ns=12345678901,coll.one_shot_max_bytes=7"));
    cr_expect_eq(pki_tuning.shm.cma, 0);
    cr_expect_eq(pki_tuning.wait.sleep_ns, 12345678901u);
    cr_expect_eq(pki_agreed.coll.one_shot_max_bytes, 7);
    cr_expect_eq(row_of("wait", "sleep_ns").value, 12345678901u);
    cr_expect_eq(row_of("coll", "one_shot_max_bytes").value, 7);
    cr_expect_eq(row_of("coll", "one_shot_max_bytes").usual, 24 << 10);
    cr_expect_eq(pki_tuning.shm.far_sure, 4, "a neighbour");
}

Test(tuning, what_cannot_be_set_is_named)
{
    static const char *const wrong[] = {
        "shm",
        "shm=1",
        "shm.cma",
        "shm.cma=",
        "shm.cma=x",
        "shm.cma=1x",
        "shm.cma=-1",
        "shm.cma= 1",
        "shm.cm=1",
        "shm.cmaa=1",
        "shmm.cma=1",
        ".cma=1",
        "=1",
        ",",
        "shm.cma=0x1",
        "shm.cma=2147483648",
        "wait.sleep_ns=99999999999999999999",
        "shm.probe_every=1",
        "shm.cma=1;wait.spins=1",
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        cr_expect_eq(pki_tuning_override(wrong[i]), wrong[i], "%s", wrong[i]);
    cr_expect_eq(pki_tuning.shm.cma, 1);
    cr_expect_str_eq(pki_tuning_override("wait.spins=3,wait.turns=4,wait.yields=5"), "wait.turns=4,wait.yields=5");
    cr_expect(pki_tuning.wait.spins == 3 && pki_tuning.wait.yields == 4000);
}
