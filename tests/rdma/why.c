/* SPDX-License-Identifier: Apache-2.0 */
/* What the library says of RDMA on this machine, which is what pickle-info prints. usage: rdma-why TEXT: does it say so? */
#include <stdio.h>
#include <string.h>

#include <pickle/pickle.h>

int main(int argc, char **argv)
{
    static char text[1 << 20];
    size_t needed;
    char *line;

    if (argc != 2 || pk_topology_dump(NULL, text, sizeof text, &needed) != PK_OK)
        return 2;
    line = strstr(text, "transport rdma");
    if (line == NULL) {
        printf("it says nothing of RDMA\n");
        return 1;
    }
    line[strcspn(line, "\n")] = '\0';
    printf("%s\n", line);
    return strstr(line, argv[1]) != NULL ? 0 : 1;
}
