/* A C node: connects to a node of this host, and says on its standard output what it gets from
 * there, one line for each message, until it gets the atom `enough'.
 *
 *     cnode NAME COOKIE NODE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <ei.h>

static void must(int is_so, const char *what)
{
    if (!is_so) {
        printf("failed: %s, %d\n", what, erl_errno);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct in_addr address;
    ei_cnode this_node;
    char *host, name[256];
    int connection;

    must(argc == 4 && (host = strchr(argv[3], '@')) != NULL, "arguments");
    setvbuf(stdout, NULL, _IONBF, 0);
    *host++ = 0;
    snprintf(name, sizeof name, "%s@%s", argv[1], host);
    address.s_addr = htonl(INADDR_LOOPBACK);       /* the host's name need not be known */
    must(ei_init() == 0, "ei_init");
    must(ei_connect_xinit(&this_node, host, argv[1], name, &address, argv[2], 0) >= 0, "ei_connect_xinit");
    connection = ei_xconnect(&this_node, &address, argv[3]);
    must(connection >= 0, "ei_xconnect");
    printf("connected %s\n", name);
    for (;;) {
        erlang_msg control;
        ei_x_buff message;
        char *said = NULL;
        int got, version, at = 0;

        ei_x_new(&message);
        got = ei_xreceive_msg(connection, &control, &message);
        must(got != ERL_ERROR, "ei_xreceive_msg");
        if (got == ERL_TICK)
            continue;
        must(ei_decode_version(message.buff, &at, &version) == 0, "ei_decode_version");
        must(ei_s_print_term(&said, message.buff, &at) >= 0, "ei_s_print_term");
        printf("got %s\n", said);
        if (strcmp(said, "enough") == 0)
            return 0;
        free(said);
        ei_x_free(&message);
    }
}
