/* SPDX-License-Identifier: Apache-2.0 */
/* Makes an id, which opens libpickle, and prints the environment's PK_*; what the library says of it comes before. Then becomes the
 * program that its arguments name. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "names.h"

extern char **environ;

int main(int argc, char **argv)
{
    pkn_id_t id;
    pkn_result_t result;
    int version;

    /* Asks for nothing that needs libpickle: nothing must be opened or said yet. */
    if (ncclGetVersion(&version) != PKN_SUCCESS)
        return 1;
    result = ncclGetUniqueId(&id);
    for (char **entry = environ; *entry != NULL; entry++)
        if (strncmp(*entry, "PK_", 3) == 0)
            puts(*entry);
    /* An interface that is not there is an error of libpickle's, which names it. */
    if (result != PKN_SUCCESS)
        puts(ncclGetLastError(NULL));
    fflush(stdout);
    if (argc > 1)
        execvp(argv[1], argv + 1);
    return result != PKN_SUCCESS && strstr(ncclGetLastError(NULL), "PK_IFNAME") == NULL;
}
