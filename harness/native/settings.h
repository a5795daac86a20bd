/* What a process and the thread that calls a kernel are set to: an engine shares all of it with the kernels it calls, so
 * each must leave it as it was. Read and compared in runners; whoever includes this defines `_GNU_SOURCE`.
 */
#ifndef GRISTMILL_SETTINGS_H
#define GRISTMILL_SETTINGS_H

#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    AFFINITY, /* this and the next one the judge changes itself, between requests */
    PRIORITY,
    ARITHMETIC,
    UNTOUCHED = ARITHMETIC, /* the first of those that it leaves alone */
    STACK_OF_X87,
    SIGNAL_MASK,
    MEMORY_POLICY,
    THREADS,
    HANDLERS,
    TIMERS,
    LOCALE,
    ENVIRONMENT,
    FOLDER,
    UMASK,
    RESOURCE_LIMITS,
    ATTRIBUTES,
    DESCRIPTORS,
    SETTINGS
};

static const char *const setting_names[SETTINGS] = {
    "the cores that its thread may use",
    "the scheduling priority of its thread",
    "its thread's floating-point control word (rounding, denormals, traps)",
    "its thread's x87 registers (after MMX: _mm_empty)",
    "the signals that its thread blocks, or their stack",
    "its thread's memory policy",
    "OpenMP's settings (a num_threads clause changes none)",
    "a signal's handler",
    "an interval timer",
    "the locale",
    "the environment",
    "the working folder",
    "the umask",
    "a resource limit",
    "an attribute of the process (prctl)",
    "the set of open descriptors",
};

#define LEFT_CHANGED "left %s changed: an engine shares it with its kernels, so restore it before you return"

typedef struct {
    uint64_t value[SETTINGS];
} settings;

/* Of libgomp, where it is among the process's own libraries. */
extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_get_dynamic(void) __attribute__((weak));
extern int omp_get_max_active_levels(void) __attribute__((weak));
extern void omp_get_schedule(int *, int *) __attribute__((weak));

static inline uint64_t settings_digest(uint64_t digest, const void *data, size_t bytes) { /* FNV-1a */
    for (const uint8_t *at = data; bytes--; at++) digest = (digest ^ *at) * 0x100000001B3u;
    return digest;
}

#define DIGEST_START 0xCBF29CE484222325u

static inline uint64_t settings_of_text(uint64_t digest, const char *text) {
    return text ? settings_digest(digest, text, strlen(text) + 1) : digest;
}

/* Rounding, flushing and traps; not which exceptions have occurred. */
static inline uint64_t settings_arithmetic(void) {
#if defined(__x86_64__)
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    const uint64_t backwards = __builtin_ia32_readeflags_u64() & 0x400; /* of string instructions */
    return (uint64_t)(_mm_getcsr() & ~0x3Fu) | (uint64_t)x87 << 32 | backwards << 48;
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
#else
    return 0;
#endif
}

/* After an object was loaded, whose start-up may have changed it: hosts do so too. */
static inline void settings_restore_arithmetic(uint64_t before) {
#if defined(__x86_64__)
    const uint16_t x87 = (uint16_t)(before >> 32);
    _mm_setcsr((uint32_t)before);
    __asm__ volatile("fldcw %0" : : "m"(x87));
    __asm__ volatile("cld");
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
#endif
}

static inline uint64_t settings_x87(void) {
#if defined(__x86_64__)
    uint16_t state[14]; /* the third pair holds the tags */
    __asm__ volatile("fnstenv %0\n\tfldenv %0" : "+m"(state));
    return state[4];
#else
    return 0;
#endif
}

static inline uint64_t settings_handlers(void) {
    uint64_t digest = DIGEST_START;
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        if (sigaction(number, NULL, &action)) continue;
        digest = settings_digest(digest, &action.sa_handler, sizeof action.sa_handler);
        if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) continue; /* `signal` leaves flags behind */
        digest = settings_digest(digest, &action.sa_flags, sizeof action.sa_flags);
        digest = settings_digest(digest, &action.sa_mask, NSIG / 8);
    }
    return digest;
}

static inline uint64_t settings_attributes(void) {
    const int asked[] = {PR_GET_DUMPABLE, PR_GET_THP_DISABLE, PR_GET_TIMERSLACK, PR_GET_NO_NEW_PRIVS};
    uint64_t digest = DIGEST_START;
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        const int answer = prctl(asked[i], 0, 0, 0, 0);
        digest = settings_digest(digest, &answer, sizeof answer);
    }
    return digest;
}

enum { DESCRIPTORS_SEEN = 256 };

static inline uint64_t settings_descriptors(void) {
    struct pollfd asked[DESCRIPTORS_SEEN];
    struct rlimit limit = {DESCRIPTORS_SEEN, 0};
    uint64_t digest = DIGEST_START;
    getrlimit(RLIMIT_NOFILE, &limit);
    const int most = limit.rlim_cur < DESCRIPTORS_SEEN ? (int)limit.rlim_cur : DESCRIPTORS_SEEN; /* poll takes no more */
    for (int fd = 0; fd < most; fd++) asked[fd] = (struct pollfd){fd, 0, 0};
    if (poll(asked, (nfds_t)most, 0) < 0) return 0;
    for (int fd = 0; fd < most; fd++)
        if (!(asked[fd].revents & POLLNVAL)) digest = settings_digest(digest, &fd, sizeof fd);
    return digest;
}

static inline void settings_of_thread(settings *s) {
    s->value[ARITHMETIC] = settings_arithmetic();
    s->value[STACK_OF_X87] = settings_x87();
    sigset_t blocked;
    stack_t stack;
    memset(&blocked, 0, sizeof blocked);
    memset(&stack, 0, sizeof stack);
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    sigaltstack(NULL, &stack);
    s->value[SIGNAL_MASK] = settings_digest(DIGEST_START, &blocked, NSIG / 8) ^ (uint64_t)(uintptr_t)stack.ss_sp;
    cpu_set_t cores;
    memset(&cores, 0, sizeof cores);
    sched_getaffinity(0, sizeof cores, &cores);
    s->value[AFFINITY] = settings_digest(DIGEST_START, &cores, sizeof cores);
    struct sched_param parameters = {0};
    sched_getparam(0, &parameters);
    const int priority[] = {sched_getscheduler(0), parameters.sched_priority, getpriority(PRIO_PROCESS, 0)};
    s->value[PRIORITY] = settings_digest(DIGEST_START, priority, sizeof priority);
    int mode = 0;
    syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0);
    s->value[MEMORY_POLICY] = (uint64_t)mode;
    int openmp[5] = {0};
    if (omp_get_max_threads) openmp[0] = omp_get_max_threads();
    if (omp_get_dynamic) openmp[1] = omp_get_dynamic();
    if (omp_get_max_active_levels) openmp[2] = omp_get_max_active_levels();
    if (omp_get_schedule) omp_get_schedule(&openmp[3], &openmp[4]);
    s->value[THREADS] = settings_digest(DIGEST_START, openmp, sizeof openmp);
}

static inline void settings_read(settings *s) {
    settings_of_thread(s);
    s->value[HANDLERS] = settings_handlers();
    s->value[TIMERS] = 0;
    for (int which = ITIMER_REAL; which <= ITIMER_PROF; which++) {
        struct itimerval timer = {{0, 0}, {0, 0}};
        getitimer(which, &timer);
        s->value[TIMERS] |= timer.it_value.tv_sec || timer.it_value.tv_usec ? 1u << which : 0;
    }
    const locale_t own = uselocale((locale_t)0);
    s->value[LOCALE] = settings_of_text(DIGEST_START, setlocale(LC_ALL, NULL)) ^ (uint64_t)(uintptr_t)own;
    s->value[ENVIRONMENT] = DIGEST_START;
    for (char **entry = environ; entry && *entry; entry++)
        s->value[ENVIRONMENT] = settings_of_text(s->value[ENVIRONMENT], *entry);
    char folder[4096];
    s->value[FOLDER] = settings_of_text(DIGEST_START, getcwd(folder, sizeof folder));
    const mode_t mask = umask(077);
    umask(mask);
    s->value[UMASK] = mask;
    s->value[RESOURCE_LIMITS] = DIGEST_START;
    for (int which = 0; which < RLIMIT_NLIMITS; which++) {
        struct rlimit limit = {0, 0};
        getrlimit(which, &limit);
        s->value[RESOURCE_LIMITS] = settings_digest(s->value[RESOURCE_LIMITS], &limit, sizeof limit);
    }
    s->value[ATTRIBUTES] = settings_attributes();
    s->value[DESCRIPTORS] = settings_descriptors();
}

/* Runs a function on every thread of OpenMP's pool, which all kernels of a process share. */
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

typedef struct {
    uint64_t expected;
    int differ;
} pool_arithmetic;

static inline void settings_compare_worker(void *data) {
    pool_arithmetic *pool = data;
    if (settings_arithmetic() != pool->expected) __atomic_store_n(&pool->differ, 1, __ATOMIC_RELAXED);
}

/* Whether a thread of the pool computes in another way than this one. */
static inline int settings_pool_differs(void) {
    pool_arithmetic pool = {settings_arithmetic(), 0};
    if (GOMP_parallel) GOMP_parallel(settings_compare_worker, &pool, 0, 0);
    return pool.differ;
}

/* The first setting from `first` on that differs, by name; NULL if all are the same. */
static inline const char *settings_changed(const settings *before, const settings *after, int first) {
    for (int which = first; which < SETTINGS; which++)
        if (before->value[which] != after->value[which]) return setting_names[which];
    return NULL;
}

#endif
