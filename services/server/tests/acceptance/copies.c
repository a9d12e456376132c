/* Counts the bytes that a process hands to memcpy and memmove: loaded into it by LD_PRELOAD, it adds them up in
 * the first eight bytes of the file that COPIES names. What a compiler copies in place, a few words of known
 * length, is not counted; neither is what the kernel copies, or libc for itself. */

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long word __attribute__((aligned(1), may_alias));

static unsigned long unnamed;
static unsigned long *copied = &unnamed;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("COPIES");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, sizeof *copied, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) copied = mapped;
    close(file);
}

void *memmove(void *to, const void *from, size_t length) {
    __atomic_fetch_add(copied, length, __ATOMIC_RELAXED);
    char *out = to;
    const char *in = from;
    size_t at = 0;
    if (out <= in || out >= in + length) {
        for (; at + sizeof(word) <= length; at += sizeof(word)) *(word *)(out + at) = *(const word *)(in + at);
        for (; at < length; at++) out[at] = in[at];
    } else {
        while (length > 0) {
            length--;
            out[length] = in[length];
        }
    }
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t length) { return memmove(to, from, length); }
