/* The untrusted runner of compiled candidates: loads one, and calls it on buffer sets that the judge prepared.
 *
 * It holds no expected output, no clock and no interpreter. Whatever it says is a claim: "done" stops the judge's clock,
 * and then the judge looks at the buffers.
 *
 *     runner CHANNEL INPUTS OUTPUTS [FILTER]
 *
 * are descriptors; FILTER holds a system call filter, which is installed before anything is loaded, or is -1.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chain.h"
#include "concurrency.h"
#include "gristmill_kernel.h"
#include "leaks.h"
#include "packing.h"
#include "protocol.h"
#include "settings.h"

#define SECCOMP_MODE_FILTER 2
#define LINK_BYTES (1u << 19) /* four times `LINKED_BYTES` of harness/layout.py, for what alignment adds */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static int channel, files[2];
static long page;

static struct {
    int32_t (*run)(const gm_call *);
    int64_t (*packed_bytes)(const gm_call *);
    int32_t (*setup)(const gm_call *, void *);
    int64_t max_packed_bytes;
} candidate;

/* The first so many bytes of a shared file are mapped once, for all plans: pages that one plan made serve the next. */
#define WINDOW ((uint64_t)2 << 30)

/* Mapped parts of the shared files. */
typedef struct {
    uint8_t *address;
    uint64_t offset, bytes;
    uint64_t filled; /* so many bytes from the beginning have all their pages */
} region;

static struct {
    plan_request head;
    plan_tensor tensors[MAX_TENSORS];
    double scalars[MAX_SCALARS];
    gm_tensor frame[MAX_TENSORS];
    region windows[2], apart[2];
    uint32_t guarded;
    uint8_t *starts[MAX_TENSORS];
    uint8_t *shared[MAX_TENSORS]; /* of linked calls: an activation's place, whatever set is called */
    packing *packed;
    chain order;
    const void *last_packed;
} plan;

/* Two views of one memory. */
static struct {
    uint8_t *written, *read;
    size_t used;
} links;

static char text[MAX_TEXT_BYTES];

static uint32_t say(uint32_t kind, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return kind;
}

static void receive(void *into, size_t bytes) {
    for (uint8_t *at = into; bytes;) {
        const ssize_t got = recv(channel, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) _exit(0); /* the judge is gone */
        at += got;
        bytes -= (size_t)got;
    }
}

static uint32_t load(const uint8_t *payload, size_t bytes) {
    const load_request *request = (const load_request *)payload;
    const char *folder = getenv("TMPDIR"); /* set where /tmp is not this process's own */
    char object[256];
    snprintf(object, sizeof object, "%s/object.so", folder ? folder : "/tmp");
    const int fd = open(object, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0700);
    size_t at = sizeof *request;
    while (fd >= 0 && at < bytes) {
        const ssize_t wrote = write(fd, payload + at, bytes - at);
        if (wrote <= 0) break;
        at += (size_t)wrote;
    }
    if (fd < 0 || at < bytes) return say(FAILED, "the object does not fit into the runner's memory");
    close(fd);
    void *library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    unlink(object);
    if (!library) return say(REFUSED, "cannot be loaded: %s", dlerror());
    candidate.max_packed_bytes = request->max_packed_bytes;
    *(void **)&candidate.run = dlsym(library, "gm_run");
    if (candidate.max_packed_bytes) {
        *(void **)&candidate.packed_bytes = dlsym(library, "gm_packed_bytes");
        *(void **)&candidate.setup = dlsym(library, "gm_setup");
    }
    if (!candidate.run || (candidate.max_packed_bytes && !(candidate.packed_bytes && candidate.setup)))
        return say(REFUSED, "cannot be loaded: %s", dlerror());
    return DONE;
}

static void forget_plan(void) {
    for (uint32_t k = 0; plan.packed && k < plan.head.sets; k++)
        give_back(&plan.packed[k]);
    free(plan.packed);
    plan.packed = NULL;
    memset(plan.shared, 0, sizeof plan.shared);
    links.used = 0;
    for (int which = 0; which < 2 && plan.guarded; which++) {
        const int access = which ? PROT_READ | PROT_WRITE : PROT_READ;
        mprotect(plan.windows[which].address, plan.windows[which].bytes, access);
        mprotect(plan.apart[which].address, plan.apart[which].bytes, access);
    }
    plan.guarded = 0;
}

/* For writing too: these pages need no notice of a first write, and reading maps many at a time. */
static void populate(region *now, uint64_t first, uint64_t end) {
    if (end <= now->filled) return;
    if (first <= now->filled) {
        first = now->filled / (uint64_t)page * (uint64_t)page;
        now->filled = end;
    }
    madvise(now->address + first, end - first, MADV_POPULATE_READ);
}

/* Where a part of a file is seen; NULL if it cannot be. */
static uint8_t *map(int which, uint64_t offset, uint64_t bytes) {
    const int within = offset + bytes <= WINDOW;
    region *now = within ? &plan.windows[which] : &plan.apart[which];
    if (now->bytes && !within) {
        munmap(now->address, now->bytes);
        now->bytes = 0;
    }
    if (!now->bytes && bytes) {
        const uint64_t first = within ? 0 : offset, size = within ? WINDOW : bytes;
        void *address = mmap(NULL, size, which ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, files[which], (off_t)first);
        if (address == MAP_FAILED) return NULL;
        *now = (region){address, first, size, 0};
    }
    if (bytes && plan.head.populate) populate(now, offset - now->offset, offset - now->offset + bytes);
    return now->address + (offset - now->offset);
}

static int64_t item_bytes_of(int32_t dtype) {
    return dtype == GM_BFLOAT16 ? 2 : dtype == GM_FLOAT64 || dtype == GM_INT64 ? 8 : 4;
}

static void add_output(const plan_tensor *tensor, const uint8_t *start) {
    int64_t elements = 1;
    for (int32_t d = 0; d < tensor->rank; d++) elements *= tensor->shape[d];
    plan.order.output[plan.order.outputs++] =
        (chain_output){start, (int64_t)tensor->pitch, elements, item_bytes_of(tensor->dtype)};
}

/* Memory for a linked activation, laid out as every set's; NULL if there is none. Candidates are given a view of it that
 * they cannot write to. */
static uint8_t *add_input(const plan_tensor *tensor, const uint8_t *start) {
    chain_input input = {start, (int64_t)tensor->pitch, item_bytes_of(tensor->dtype), {1, 1, 1, 1}, {0}, NULL};
    int64_t span = 1;
    for (int32_t d = 0; d < tensor->rank; d++) {
        const int32_t place = 4 - tensor->rank + d;
        input.shape[place] = tensor->stride[d] ? tensor->shape[d] : 1;
        input.stride[place] = tensor->stride[d];
        span += (tensor->shape[d] - 1) * tensor->stride[d];
    }
    const size_t bytes = ((size_t)(span * input.item_bytes) + 63) / 64 * 64;
    if (links.used + bytes > LINK_BYTES) return NULL;
    input.to = links.written + links.used;
    memset(input.to, 0xFF, bytes);
    plan.order.input[plan.order.inputs++] = input;
    links.used += bytes;
    return links.read + (input.to - links.written);
}

/* Before the filter, which permits no new files in memory. */
static int open_links(void) {
    const int fd = memfd_create("links", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, LINK_BYTES)) return -1;
    links.written = mmap(NULL, LINK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    links.read = mmap(NULL, LINK_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return links.written == MAP_FAILED || links.read == MAP_FAILED ? -1 : 0;
}

static uint32_t make_plan(const uint8_t *payload) {
    forget_plan();
    memcpy(&plan.head, payload, sizeof plan.head);
    const uint32_t count = plan.head.inputs + plan.head.outputs;
    payload += sizeof plan.head;
    memcpy(plan.tensors, payload, count * sizeof plan.tensors[0]);
    memcpy(plan.scalars, payload + count * sizeof plan.tensors[0], plan.head.scalars * sizeof(double));
    uint8_t *starts[2] = {map(0, plan.head.input_offset, plan.head.input_bytes), map(1, 0, plan.head.output_bytes)};
    if (!starts[0] || !starts[1]) return say(FAILED, "cannot map the buffers: %s", strerror(errno));
    plan.guarded = plan.head.guarded;
    const int preceded = plan.head.input_offset > 0 && plan.head.input_offset + plan.head.input_bytes <= WINDOW;
    if (plan.guarded && preceded) mprotect(starts[0] - page, (size_t)page, PROT_NONE);
    plan.order.outputs = plan.order.inputs = 0;
    plan.order.linked = plan.head.linked;
    plan.order.last = -1;
    for (uint32_t i = 0; i < count; i++) {
        const plan_tensor *tensor = &plan.tensors[i];
        uint8_t *region_start = starts[i >= plan.head.inputs];
        plan.starts[i] = region_start + tensor->start;
        gm_tensor *seen = &plan.frame[i];
        seen->dtype = tensor->dtype;
        seen->rank = tensor->rank;
        memcpy(seen->shape, tensor->shape, sizeof seen->shape);
        memcpy(seen->stride, tensor->stride, sizeof seen->stride);
        for (uint32_t k = 0; k < plan.head.guarded; k++)
            mprotect(region_start + tensor->base + (k + 1) * tensor->pitch - (uint64_t)page, (size_t)page, PROT_NONE);
        if (i >= plan.head.inputs) add_output(tensor, plan.starts[i]);
        else if (plan.head.linked && !tensor->weight && !(plan.shared[i] = add_input(tensor, plan.starts[i])))
            return say(FAILED, "no memory");
    }
    plan.packed = calloc(plan.head.sets, sizeof *plan.packed);
    return plan.packed ? DONE : say(FAILED, "no memory");
}

static uint32_t set_up(const uint32_t *numbers, size_t count) {
    gm_call call = {plan.frame, plan.frame + plan.head.inputs, plan.scalars, NULL};
    for (size_t n = 0; n < count; n++) {
        for (uint32_t i = 0; i < plan.head.inputs + plan.head.outputs; i++)
            plan.frame[i].data = plan.tensors[i].weight ? plan.starts[i] + numbers[n] * plan.tensors[i].pitch : NULL;
        const int64_t bytes = candidate.packed_bytes(&call);
        if (bytes < 0 || bytes > candidate.max_packed_bytes)
            return say(REFUSED, "gm_packed_bytes returned %lld; expected 0 to %lld", (long long)bytes,
                       (long long)candidate.max_packed_bytes);
        packing *packed = &plan.packed[numbers[n]];
        if (!make_room(packed, (size_t)bytes)) return say(FAILED, "cannot map %lld bytes for packed weights", (long long)bytes);
        const int32_t code = candidate.setup(&call, packed->start);
        mprotect(packed->pages, packed->room, PROT_READ);
        if (spilled(packed)) return say(REFUSED, "gm_setup wrote around the %lld bytes of packed weights", (long long)bytes);
        if (code) return say(REFUSED, "gm_setup returned %d; expected 0", code);
    }
    return DONE;
}

/* As a host does: one frame per plan, a pointer per tensor written before each call. */
static uint32_t run(uint8_t *payload) {
    const run_request *request = (const run_request *)payload;
    const uint32_t inputs = plan.head.inputs, count = inputs + plan.head.outputs;
    gm_call call = {plan.frame, plan.frame + inputs, plan.scalars, NULL};
    chain *order = &plan.order;
    order->state = request->seed;
    order->pool = (uint32_t *)(payload + sizeof *request);
    order->remaining = request->pool;
    order->last = -1;
    for (uint32_t k = 0; k < request->calls; k++) {
        const int64_t number = chain_step(order);
        for (uint32_t i = 0; i < count; i++)
            plan.frame[i].data = plan.shared[i] ? plan.shared[i] : plan.starts[i] + (uint64_t)number * plan.tensors[i].pitch;
        call.packed = plan.last_packed = plan.packed[number].start;
        const int32_t code = candidate.run(&call);
        if (code) return say(REFUSED, "gm_run returned %d inside its own domain; expected 0", code);
    }
    return DONE;
}

#define SLOW_NS 2e8 /* a call; more of them would take a review longer than it is worth */

/* What shows only in calls that nobody times: the last one repeated, and two at once on sets of their own. */
static uint32_t review(void) {
    static gm_tensor frames[2][MAX_TENSORS];
    caller both[2];
    const uint32_t inputs = plan.head.inputs, count = inputs + plan.head.outputs;
    const gm_call last = {plan.frame, plan.frame + inputs, plan.scalars, plan.last_packed};
    const double start_ns = now_ns();
    if (plan.order.last < 0 || candidate.run(&last) || now_ns() - start_ns > SLOW_NS) return DONE;
    const int64_t leaked = leaked_bytes(candidate.run, &last);
    if (leaked) return say(REFUSED, "leaked %lld bytes of memory in each call: free what you allocate", (long long)leaked);
    for (uint32_t which = 0; which < 2; which++) {
        for (uint32_t i = 0; i < count; i++) {
            frames[which][i] = plan.frame[i];
            frames[which][i].data = plan.starts[i] + which * plan.tensors[i].pitch;
        }
        const gm_call call = {frames[which], frames[which] + inputs, plan.scalars, plan.packed[which].start};
        both[which] = (caller){candidate.run, call, (int)plan.head.outputs, {NULL}, NULL, 0};
    }
    if (disturb_each_other(both)) /* before the pool is looked at, whose threads stay awake for a while */
        return say(REFUSED, "gave other answers when two threads called it at once: keep what a call needs on its stack, or per thread");
    if (settings_pool_differs()) return say(REFUSED, LEFT_CHANGED, "the floating-point control word of OpenMP's threads");
    return DONE;
}

static settings loaded;

static uint32_t carry_out(uint32_t kind, uint8_t *payload, size_t bytes) {
    switch (kind) {
        case RUN: return run(payload);
        case SETUP: return set_up((const uint32_t *)payload, bytes / 4);
        case PLAN: return make_plan(payload);
        case LOAD: return load(payload, bytes);
        case REVIEW: return review();
        default: return DONE;
    }
}

/* Carries out a request, and sees that all settings are left as they were: arithmetic always, others where no time is taken. */
static uint32_t answer(uint32_t kind, uint8_t *payload, size_t bytes) {
    const int wholly = kind == LOAD || (plan.head.guarded && (kind == SETUP || kind == RUN));
    settings before, after;
    if (kind == REVIEW) before = loaded;
    else if (wholly) settings_read(&before);
    const uint64_t arithmetic = settings_arithmetic();
    const uint32_t said = carry_out(kind, payload, bytes);
    if (kind == LOAD) settings_restore_arithmetic(arithmetic);
    const int arithmetic_changed = settings_arithmetic() != arithmetic;
    if (said != DONE || (!wholly && kind != REVIEW && !arithmetic_changed)) return said;
    const char *changed = setting_names[ARITHMETIC];
    if (!arithmetic_changed) {
        settings_read(&after);
        changed = settings_changed(&before, &after, kind == REVIEW ? UNTOUCHED : 0);
        if (kind == LOAD) loaded = after;
    }
    return changed ? say(REFUSED, LEFT_CHANGED, changed) : DONE;
}

static void install_filter(int fd) {
    struct stat facts;
    static struct sock_filter program[4096];
    if (fstat(fd, &facts) || (size_t)facts.st_size > sizeof program) _exit(3);
    if (pread(fd, program, (size_t)facts.st_size, 0) != facts.st_size) _exit(3);
    close(fd);
    struct sock_fprog filter = {(unsigned short)((size_t)facts.st_size / sizeof program[0]), program};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0)) _exit(3);
}

/* The kernel keeps process 1 of a namespace from dying of a signal that it sends itself. */
static void abort_all_the_same(int number) { _exit(128 + number); }

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    signal(SIGABRT, abort_all_the_same);
    channel = atoi(argv[1]);
    files[0] = atoi(argv[2]);
    files[1] = atoi(argv[3]);
    page = sysconf(_SC_PAGESIZE);
    if (open_links()) return 3;
    if (argc > 4 && atoi(argv[4]) >= 0) install_filter(atoi(argv[4]));
    for (;;) {
        header message;
        receive(&message, sizeof message);
        uint8_t *payload = malloc(message.size_bytes + 16u);
        if (!payload) _exit(4);
        receive(payload, message.size_bytes);
        text[0] = 0;
        if (message.kind == QUIT) return 0;
        const uint32_t answered = answer(message.kind, payload, message.size_bytes);
        struct {
            header head;
            char text[MAX_TEXT_BYTES];
        } reply = {{answered, (uint32_t)strlen(text), message.nonce}, {0}};
        memcpy(reply.text, text, reply.head.size_bytes);
        if (send(channel, &reply, sizeof reply.head + reply.head.size_bytes, MSG_NOSIGNAL) < 0) return 0;
        free(payload);
    }
}
