/* A C node: connects to a node, and says on its standard output what it gets from there, one
 * line for each message, until it gets the atom `enough'.
 *
 *     cnode NAME COOKIE NODE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    ei_cnode this_node;
    int connection;

    must(argc == 4, "arguments");
    setvbuf(stdout, NULL, _IONBF, 0);
    must(ei_init() == 0, "ei_init");
    must(ei_connect_init(&this_node, argv[1], argv[2], 0) >= 0, "ei_connect_init");
    connection = ei_connect(&this_node, argv[3]);
    must(connection >= 0, "ei_connect");
    printf("connected %s\n", ei_thisnodename(&this_node));
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
