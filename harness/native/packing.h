/* Memory for packed weights, as the runner of compiled candidates hands it to them. Whoever includes this defines
 * `_GNU_SOURCE`.
 */
#ifndef GRISTMILL_PACKING_H
#define GRISTMILL_PACKING_H

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLACK 0xA5

/* Pages of one set's packed weights, which end shortly before one that nobody may touch. They begin at a multiple of 64 and
 * of no more, as a host has it. */
typedef struct {
    uint8_t *pages, *start;
    size_t room, bytes;
} packing;

static inline void give_back(packing *packed) {
    if (packed->room) munmap(packed->pages, packed->room + (size_t)sysconf(_SC_PAGESIZE));
    packed->room = 0;
}

/* Writable pages for so many bytes, with a pattern around them; 0 if there are none. */
static inline int make_room(packing *packed, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t size = (bytes + 63) / 64 * 64;
    if (size % 128 == 0) size += 64;
    const size_t room = (size + page - 1) / page * page;
    if (packed->room != room) {
        give_back(packed);
        uint8_t *pages = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) return 0;
        mprotect(pages + room, page, PROT_NONE);
        packed->pages = pages;
        packed->room = room;
    }
    packed->start = packed->pages + room - size;
    packed->bytes = bytes;
    mprotect(packed->pages, room, PROT_READ | PROT_WRITE);
    memset(packed->pages, SLACK, (size_t)(packed->start - packed->pages));
    memset(packed->start + bytes, SLACK, size - bytes);
    return 1;
}

static inline int spilled(const packing *packed) {
    const uint8_t *end = packed->pages + packed->room;
    for (const uint8_t *at = packed->pages; at < end; at++) {
        if (at == packed->start) at += packed->bytes;
        if (at < end && *at != SLACK) return 1;
    }
    return 0;
}

#endif
