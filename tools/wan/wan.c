/* A wide-area link between two network namespaces, without netem.
 *
 *     wan NAMESPACE_A NAMESPACE_B DEVICE
 *
 * makes a TUN device of that name in both namespaces, and carries IP packets from
 * one to the other:
 *
 *                loss      rate            delay
 *     TUN A ──> (drop?) ──> queue, at most `limit' packets ──> TUN B
 *
 * What it does is said on its standard input, a line for each setting; it ends when
 * the input does, and the devices with it:
 *
 *     ab|ba|both delay MS      one way
 *     ab|ba|both loss PERCENT  of the packets, independently
 *     ab|ba|both rate MBIT     a second; 0 is no limit
 *     ab|ba|both limit PACKETS that are in the link at once
 *     ab|ba|both stall 0|1     packets go in, and none comes out
 *     stats                    says, and forgets, what has been done
 *
 * The devices take TCP segments of up to 64 KB, as network cards do, and hand them on
 * whole: a packet is what the card would have made of them. They are counted, limited
 * and lost one by one; a large segment of which some are lost goes on in parts. It
 * costs a tenth of the processor time.
 *
 * While packets flow the program wakes up every TICK and not for each of them: on two
 * processors the wake-ups would be the load. A packet is read half a tick late and
 * written half a tick late on the mean, which is taken off the delay.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define TICK_NS 250000             /* between two looks at the devices */
#define AWAKE_NS 20000000          /* from the last packet on until it sleeps */
#define BURST 256                  /* reads of one device in one go */
#define MAX_PACKET 66000
#define HEADER sizeof(struct virtio_net_hdr)

typedef uint64_t ns_t;

struct packet { struct packet *next; ns_t due; unsigned count; size_t len; char data[]; };

struct direction {
    int in, out;
    ns_t delay, free_at;           /* free_at: when the sender of a limited rate is */
    double loss, ns_per_byte;
    unsigned limit, queued;
    int stalled;
    struct packet *head, **tail;
    uint64_t random;
    /* statistics */
    uint64_t packets, bytes, full, lost, failed, late_ns, late_count;
    unsigned most;
} ways[2];

static ns_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (ns_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int open_tun(const char *namespace, const char *device)
{
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", namespace);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) < 0)
        die(path);
    close(ns);
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tun < 0)
        die("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    strncpy(request.ifr_name, device, IFNAMSIZ - 1);
    int room = 1 << 26;
    if (ioctl(tun, TUNSETIFF, &request) < 0)
        die("TUNSETIFF");
    if (ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0)
        die("TUNSETOFFLOAD");
    if (ioctl(tun, TUNSETSNDBUF, &room) < 0)
        die("TUNSETSNDBUF");
    return tun;
}

/* xorshift */
static double chance(struct direction *d)
{
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return (d->random >> 11) / 9007199254740992.0;
}

static void enqueue_part(struct direction *d, const char *data, size_t len, unsigned first,
                         unsigned last, ns_t time);

static void enqueue(struct direction *d, const char *data, size_t len, unsigned count, ns_t time)
{
    if (d->queued + count > d->limit) {
        unsigned room = d->queued < d->limit ? d->limit - d->queued : 0;
        d->full += count - room;
        if (room)
            enqueue_part(d, data, len, 0, room, time);
        return;
    }
    if (d->ns_per_byte > 0) {
        if (d->free_at > time)
            time = d->free_at;
        time += (len - HEADER) * d->ns_per_byte;
        d->free_at = time;
    }
    struct packet *p = malloc(sizeof *p + len);
    if (!p)
        die("malloc");
    *p = (struct packet){.due = time + (d->delay > TICK_NS ? d->delay - TICK_NS : 0),
                         .count = count, .len = len};
    memcpy(p->data, data, len);
    *d->tail = p;
    d->tail = &p->next;
    d->queued += count;
    if (d->queued > d->most)
        d->most = d->queued;
}

static uint16_t fold(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static uint32_t sum16(const void *data, size_t len)
{
    const uint16_t *words = data;
    uint32_t sum = 0;
    for (; len > 1; len -= 2)
        sum += *words++;
    return sum;
}

/* The packets from First up to Last of a large segment, as one that is smaller. */
static void enqueue_part(struct direction *d, const char *data, size_t len, unsigned first,
                         unsigned last, ns_t time)
{
    char part[MAX_PACKET];             /* of a part there may be a part again */
    memcpy(part, data, len < HEADER + 120 ? len : HEADER + 120);
    struct virtio_net_hdr *v = (void *)part;
    struct iphdr *ip = (void *)(part + HEADER);
    struct tcphdr *tcp = (void *)((char *)ip + ip->ihl * 4);
    size_t headers = ip->ihl * 4 + tcp->doff * 4, payload = len - HEADER - headers,
           mss = v->gso_size;
    size_t from = first * mss, to = last * mss < payload ? last * mss : payload;
    memcpy((char *)ip + headers, data + HEADER + headers + from, to - from);
    ip->tot_len = htons(headers + to - from);
    ip->id = htons(ntohs(ip->id) + first);
    ip->check = 0;
    ip->check = ~fold(sum16(ip, ip->ihl * 4));
    tcp->seq = htonl(ntohl(tcp->seq) + from);
    if (to < payload)
        tcp->psh = tcp->fin = 0;
    /* of the pseudo header; the rest is for whoever hands the segment on */
    tcp->check = fold(sum16(&ip->saddr, 8) + htons(IPPROTO_TCP) + htons(tcp->doff * 4 + to - from));
    if (last - first == 1)
        v->gso_type = VIRTIO_NET_HDR_GSO_NONE, v->gso_size = 0;
    enqueue(d, part, HEADER + headers + to - from, last - first, time);
}

static void arrive(struct direction *d, const char *data, size_t len, ns_t time)
{
    const struct virtio_net_hdr *v = (const void *)data;
    unsigned count = 1;
    if (v->gso_type != VIRTIO_NET_HDR_GSO_NONE && v->gso_size > 0) {
        const struct iphdr *ip = (const void *)(data + HEADER);
        const struct tcphdr *tcp = (const void *)((const char *)ip + ip->ihl * 4);
        count = (len - HEADER - ip->ihl * 4 - tcp->doff * 4 + v->gso_size - 1) / v->gso_size;
    }
    d->packets += count;
    d->bytes += len - HEADER;
    if (d->loss <= 0) {
        enqueue(d, data, len, count, time);
        return;
    }
    unsigned first = 0, lost = 0;
    for (unsigned i = 0; i < count; i++)
        if (chance(d) < d->loss) {
            if (i > first)
                enqueue_part(d, data, len, first, i, time);
            first = i + 1;
            lost++;
        }
    d->lost += lost;
    if (lost == 0)
        enqueue(d, data, len, count, time);
    else if (first < count)
        enqueue_part(d, data, len, first, count, time);
}

/* Whether there was anything, and whether there may be more. */
static int take_in(struct direction *d)
{
    static char buffer[MAX_PACKET];
    ns_t time = now();
    for (int i = 0; i < BURST; i++) {
        ssize_t len = read(d->in, buffer, sizeof buffer);
        if (len <= (ssize_t)HEADER)
            return i > 0;
        arrive(d, buffer, len, time);
    }
    return 2;
}

static void let_out(struct direction *d)
{
    ns_t time = now();
    while (d->head && d->head->due <= time && !d->stalled) {
        struct packet *p = d->head;
        d->late_ns += time - p->due;
        d->late_count++;
        if (write(d->out, p->data, p->len) != (ssize_t)p->len)
            d->failed += p->count;
        d->queued -= p->count;
        if (!(d->head = p->next))
            d->tail = &d->head;
        free(p);
    }
}

static void say_stats(void)
{
    static ns_t last;
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    ns_t used = (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000000ull +
                (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1000ull;
    printf("stats %lu", (unsigned long)((used - last) / 1000));
    last = used;
    for (int i = 0; i < 2; i++) {
        struct direction *d = &ways[i];
        printf(" %lu %lu %lu %lu %lu %u %lu", d->packets, d->bytes, d->full, d->lost, d->failed,
               d->most, d->late_count ? d->late_ns / d->late_count / 1000 : 0);
        d->packets = d->bytes = d->full = d->lost = d->failed = d->late_ns = d->late_count = 0;
        d->most = d->queued;
    }
    printf("\n");
}

static void set(struct direction *d, const char *what, double value)
{
    if (!strcmp(what, "delay"))
        d->delay = value * 1e6;
    else if (!strcmp(what, "loss"))
        d->loss = value / 100;
    else if (!strcmp(what, "rate"))
        d->ns_per_byte = value > 0 ? 8000 / value : 0;
    else if (!strcmp(what, "limit"))
        d->limit = value;
    else if (!strcmp(what, "stall"))
        d->stalled = value != 0;
}

static void command(const char *line)
{
    char way[8], what[16];
    double value;
    if (!strncmp(line, "stats", 5))
        say_stats();
    else if (sscanf(line, "%7s %15s %lf", way, what, &value) == 3) {
        if (strcmp(way, "ba"))
            set(&ways[0], what, value);
        if (strcmp(way, "ab"))
            set(&ways[1], what, value);
        printf("ok\n");
    } else
        printf("what? %s\n", line);
}

/* Lines that have come in whole. */
static void listen_to_input(void)
{
    static char text[4096];
    static size_t len;
    ssize_t n = read(0, text + len, sizeof text - 1 - len);
    if (n <= 0)
        exit(0);
    text[len += n] = 0;
    char *start = text, *end;
    for (; (end = strchr(start, '\n')); start = end + 1) {
        *end = 0;
        command(start);
    }
    memmove(text, start, len -= start - text);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: wan NAMESPACE_A NAMESPACE_B DEVICE\n");
        return 2;
    }
    int a = open_tun(argv[1], argv[3]), b = open_tun(argv[2], argv[3]);
    for (int i = 0; i < 2; i++)
        ways[i] = (struct direction){.in = i ? b : a, .out = i ? a : b, .limit = 1000,
                                     .tail = &ways[i].head,
                                     .random = now() ^ (0x9e3779b97f4a7c15ull * (i + 1))};
    prctl(PR_SET_TIMERSLACK, 1);
    struct sched_param priority = {.sched_priority = 10};
    if (sched_setscheduler(0, SCHED_FIFO, &priority) < 0)
        perror("wan: no real-time priority");
    printf("ready\n");
    fflush(stdout);
    ns_t last = 0, next = now();
    for (;;) {
        int more = take_in(&ways[0]) | take_in(&ways[1]);
        let_out(&ways[0]);
        let_out(&ways[1]);
        ns_t time = now();
        if (more || (ways[0].head && !ways[0].stalled) || (ways[1].head && !ways[1].stalled))
            last = time;
        static unsigned busy;
        if ((more & 2) && ++busy % 64)
            continue;
        struct pollfd fds[3] = {{0, POLLIN, 0}, {a, POLLIN, 0}, {b, POLLIN, 0}};
        if (time - last > AWAKE_NS) {
            poll(fds, 3, -1);
            next = now();
        } else {
            next = next + TICK_NS < time ? time : next + TICK_NS;
            struct timespec t = {next / 1000000000, next % 1000000000};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
            poll(fds, 1, 0);
        }
        if (fds[0].revents)
            listen_to_input();
    }
}
