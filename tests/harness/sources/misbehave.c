/* One bad deed by name, done as a kernel would do it: `misbehave DEED [FILTER]`. A deed that is refused ends with 5. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REFUSED = 5 };

static void install_filter(int descriptor) {
    static struct sock_filter code[4096];
    struct sock_fprog program = {(unsigned short)(read(descriptor, code, sizeof code) / sizeof *code), code};
    if (prctl(PR_SET_SECCOMP, 2, &program)) _exit(9);
}

static void *forever(void *unused) {
    for (;;) pause();
    return unused;
}

static void forks(void) {
    int refused = 0;
    while (refused < 1000)
        if (fork() < 0) refused++;
    for (;;) pause();
}

static void threads(void) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    for (int made = 0; made < 100000; made++)
        if (pthread_create(&thread, &small, forever, NULL)) exit(made < 10000 ? REFUSED : 6);
}

static void memory(void) {
    for (;;) {
        char *block = mmap(NULL, 1 << 24, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) exit(REFUSED);
        memset(block, 1, 1 << 24);
    }
}

static void disk(void) {
    static char block[1 << 20];
    for (int number = 0;; number++) {
        char name[64];
        snprintf(name, sizeof name, "/tmp/%d", number);
        const int descriptor = open(name, O_CREAT | O_WRONLY, 0600);
        if (descriptor < 0 || write(descriptor, block, sizeof block) < (ssize_t)sizeof block)
            exit(errno == ENOSPC || errno == EMFILE ? REFUSED : 6);
        close(descriptor);
    }
}

static void many_files(void) {
    for (int number = 0; number < 1000000; number++) {
        char name[64];
        snprintf(name, sizeof name, "/tmp/%d", number);
        if (mknod(name, 0100600, 0)) exit(errno == ENOSPC ? REFUSED : 6);
    }
}

static void every_descriptor(void) {
    for (int descriptor = 0; descriptor < 4096; descriptor++) close(descriptor);
    for (;;) pause();
}

static void daemons(void) {
    signal(SIGHUP, SIG_IGN);
    if (fork() == 0) {
        setsid();
        if (fork() == 0)
            for (;;) pause();
    }
    exit(0);
}

/* Each of these must be refused: calls that reach beyond this process, or keep something after it. */
static void reaches(void) {
    const int shared = open("/dev/shm/left", O_CREAT | O_RDWR, 0600);
    const int written[] = {
        socket(AF_INET, SOCK_STREAM, 0), socket(AF_UNIX, SOCK_STREAM, 0), shared, open("/left", O_CREAT | O_RDWR, 0600),
        open("/proc/1/mem", O_RDWR), open("/proc/self/mem", O_RDWR),
        (int)syscall(SYS_shmget, 7, 4096, 01666), (int)syscall(SYS_memfd_create, "left", 0),
        (int)syscall(SYS_mq_open, "left", O_CREAT | O_RDWR, 0600, NULL), (int)syscall(SYS_semget, 7, 1, 01666),
        (int)syscall(SYS_msgget, 7, 01666), (int)syscall(SYS_inotify_init1, 0), (int)syscall(SYS_unshare, 0x10000000),
        (int)syscall(SYS_clone, 0x10000000 | SIGCHLD, 0, 0, 0, 0), (int)syscall(SYS_setns, 0, 0),
        (int)syscall(SYS_personality, 0x0040000), (int)syscall(SYS_pidfd_open, getpid(), 0), setpriority(0, 0, -5),
        (int)syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0), (int)syscall(SYS_bpf, 0, NULL, 0),
        (int)syscall(SYS_io_uring_setup, 8, NULL), (int)syscall(SYS_userfaultfd, 0), mlockall(MCL_CURRENT),
        prctl(PR_SET_PDEATHSIG, 0), chmod("/usr", 0777), symlink("/etc", "/usr/left"), mknod("/tmp/device", 0020666, 0x0103),
        nice(-1) == -1 ? -1 : 0,
    };
    for (unsigned number = 0; number < sizeof written / sizeof *written; number++)
        if (written[number] >= 0) exit(100 + (int)number);
    exit(REFUSED);
}

int main(int count, char **arguments) {
    const char *deed = arguments[1];
    if (count > 2 && atoi(arguments[2]) >= 0) install_filter(atoi(arguments[2]));
    if (!strcmp(deed, "hang")) for (;;) {}
    if (!strcmp(deed, "forks")) forks();
    if (!strcmp(deed, "threads")) threads();
    if (!strcmp(deed, "memory")) memory();
    if (!strcmp(deed, "disk")) disk();
    if (!strcmp(deed, "many_files")) many_files();
    if (!strcmp(deed, "every_descriptor")) every_descriptor();
    if (!strcmp(deed, "daemons")) daemons();
    if (!strcmp(deed, "reaches")) reaches();
    if (!strcmp(deed, "crash")) *(volatile int *)8 = 1;
    if (!strcmp(deed, "abort")) abort();
    if (!strcmp(deed, "stops")) kill(getpid(), SIGSTOP);
    if (!strcmp(deed, "ignores")) {
        for (int number = 1; number < 65; number++) signal(number, SIG_IGN);
        for (;;) pause();
    }
    if (!strcmp(deed, "signals"))
        for (int number = 1; number < 65; number++)
            if (number != SIGKILL && number != SIGSTOP) kill(getpid(), number);
    if (!strcmp(deed, "honest")) return 0;
    return REFUSED;
}
