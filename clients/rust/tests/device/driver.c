/* A mock of the CUDA driver functions that the client uses, for machines without a GPU. Device memory is host memory.
 *
 * A stream is a thread that executes its tasks in order. It sleeps for a random time before each task, and copies in pieces. A
 * read before the event of a copy, or a write that comes too early, therefore shows wrong bytes. When the context is released,
 * everything must have been freed, and every copy must have been from pinned memory. Otherwise the process aborts.
 *
 * A copy to host memory that is not page-locked is synchronous, as on a GPU. A destroyed stream is an invalid handle. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, CAPTURE_UNSUPPORTED = 900 };
enum { COPY, RECORD, WAIT, STOP };

typedef struct Event {
    long recorded, done; /* number of records */
    int references;
} Event;

typedef struct Task {
    struct Task *next;
    int kind;
    char *to;
    const char *from;
    size_t bytes;
    Event *event;
    long number; /* of the awaited record */
} Task;

typedef struct Stream {
    pthread_t thread;
    Task *first, **last;
    long given, done;
    unsigned seed;
} Stream;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long retained, streams, events, allocations, peak_allocations, registrations, unpinned_copies;
static int is_freeing_held;
static void *held; /* the stream that executes no task, of at most one */
static Stream *all[64], *legacy;
static __thread int current; /* number of pushes */
enum { GLOBAL, THREAD_LOCAL, RELAXED };
static __thread int mode = GLOBAL;
static void *capturing; /* the stream that captures a graph, of at most one */

struct Range { char *at; size_t bytes; };
static struct Range pinned[4096], allocated[4096];

static int find(struct Range *ranges, const char *at, size_t bytes) {
    for (int i = 0; i < 4096; i++)
        if (ranges[i].at && ranges[i].at <= at && at + bytes <= ranges[i].at + ranges[i].bytes) return i;
    return -1;
}

static void put(struct Range *ranges, char *at, size_t bytes) {
    for (int i = 0; i < 4096; i++)
        if (!ranges[i].at) { ranges[i] = (struct Range){at, bytes}; return; }
    fprintf(stderr, "driver.c: too many ranges\n");
    abort();
}

static void release(Event *event) { /* requires the mutex */
    if (--event->references == 0) free(event);
}

static void *run(void *argument) {
    Stream *stream = argument;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!stream->first || held == stream) pthread_cond_wait(&changed, &mutex);
        Task *task = stream->first;
        if (task->kind == WAIT)
            while (task->event->done < task->number) pthread_cond_wait(&changed, &mutex);
        pthread_mutex_unlock(&mutex);
        if (task->kind != STOP) usleep(rand_r(&stream->seed) % 3 ? 0 : rand_r(&stream->seed) % 3000);
        if (task->kind == COPY)
            for (size_t at = 0; at < task->bytes; at += 16384) {
                size_t left = task->bytes - at;
                memcpy(task->to + at, task->from + at, left < 16384 ? left : 16384);
                sched_yield();
            }
        pthread_mutex_lock(&mutex);
        if (task->kind == RECORD && task->event->done < task->number) task->event->done = task->number;
        if (task->event) release(task->event);
        stream->first = task->next;
        if (!stream->first) stream->last = &stream->first;
        stream->done++;
        int stop = task->kind == STOP;
        free(task);
        pthread_cond_broadcast(&changed);
        if (stop) break;
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static void give(Stream *stream, Task what) { /* requires the mutex */
    Task *task = malloc(sizeof *task);
    *task = what;
    if (task->event) task->event->references++;
    *stream->last = task;
    stream->last = &task->next;
    stream->given++;
    pthread_cond_broadcast(&changed);
}

static Stream *begin(void) { /* requires the mutex */
    Stream *stream = calloc(1, sizeof *stream);
    stream->last = &stream->first;
    stream->seed = (unsigned)(size_t)stream ^ (unsigned)getpid();
    pthread_create(&stream->thread, NULL, run, stream);
    return stream;
}

static Stream *of(void *handle) { /* requires the mutex */
    if ((size_t)handle > 2) return handle;
    if (!legacy) legacy = begin();
    return legacy;
}

static int is_stream(void *handle) { /* requires the mutex */
    int found = (size_t)handle <= 2;
    for (int i = 0; i < 64; i++)
        if (all[i] == handle) found = 1;
    return found;
}

static void finish(Stream *stream) { /* requires the mutex */
    long given = stream->given;
    while (stream->done < given) pthread_cond_wait(&changed, &mutex);
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID_DEVICE : SUCCESS; }

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    pthread_mutex_lock(&mutex);
    retained++;
    pthread_mutex_unlock(&mutex);
    *context = &retained;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    pthread_mutex_lock(&mutex);
    if (--retained == 0 && (streams || events || allocations || registrations || unpinned_copies)) {
        fprintf(stderr, "driver.c: %ld streams, %ld events, %ld allocations, %ld registrations are left, %ld copies from "
                        "memory that is not pinned\n", streams, events, allocations, registrations, unpinned_copies);
        abort();
    }
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

int cuCtxSetCurrent(void *context) { current = context == &retained; return SUCCESS; }
int cuCtxPushCurrent_v2(void *context) { current += context == &retained; return SUCCESS; }

int cuCtxPopCurrent_v2(void **context) {
    *context = &retained;
    return current-- > 0 ? SUCCESS : INVALID_CONTEXT;
}

/* For the tests: returns the number of contexts that this thread has pushed and not popped. */
int driver_current(void) { return current; }

int cuCtxSynchronize(void) {
    if (!current) return INVALID_CONTEXT;
    if (__atomic_load_n(&capturing, __ATOMIC_SEQ_CST)) return CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < 64; i++)
        if (all[i]) finish(all[i]);
    if (legacy) finish(legacy);
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (i < 64 && all[i]) i++;
    if (i == 64) { pthread_mutex_unlock(&mutex); return OUT_OF_MEMORY; }
    streams++;
    *stream = all[i] = begin();
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

int cuStreamDestroy_v2(Stream *stream) {
    pthread_mutex_lock(&mutex);
    if (!is_stream(stream)) { pthread_mutex_unlock(&mutex); return INVALID_HANDLE; }
    give(stream, (Task){.kind = STOP});
    for (int i = 0; i < 64; i++)
        if (all[i] == stream) all[i] = NULL;
    streams--;
    pthread_mutex_unlock(&mutex);
    pthread_join(stream->thread, NULL);
    free(stream);
    return SUCCESS;
}

/* Only the tests begin and end a capture, with driver_capture. */
int cuStreamIsCapturing(void *stream, int *status) {
    if (!current || mode != RELAXED) return INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    int is_live = is_stream(stream);
    pthread_mutex_unlock(&mutex);
    if (!is_live) return INVALID_HANDLE;
    *status = stream == __atomic_load_n(&capturing, __ATOMIC_SEQ_CST);
    return SUCCESS;
}

void driver_capture(void *stream) { __atomic_store_n(&capturing, stream, __ATOMIC_SEQ_CST); }

int cuThreadExchangeStreamCaptureMode(int *other) {
    int before = mode;
    mode = *other;
    *other = before;
    return SUCCESS;
}

/* For the tests: returns the allocations of the device, and the highest number of them so far. */
long driver_allocations(void) {
    pthread_mutex_lock(&mutex);
    long found = allocations;
    pthread_mutex_unlock(&mutex);
    return found;
}

long driver_peak_allocations(void) {
    pthread_mutex_lock(&mutex);
    long found = peak_allocations;
    pthread_mutex_unlock(&mutex);
    return found;
}

/* For the tests: makes cuMemFree wait, as it waits for a busy device, until it is called with 0. */
void driver_hold_freeing(int is_held) {
    pthread_mutex_lock(&mutex);
    is_freeing_held = is_held;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* For the tests: returns 1 if this host memory is page-locked. */
int driver_is_pinned(const char *at, size_t bytes) {
    pthread_mutex_lock(&mutex);
    int found = find(pinned, at, bytes) >= 0;
    pthread_mutex_unlock(&mutex);
    return found;
}

/* For the tests: makes a stream execute nothing, as behind long work, until this is called with another stream or NULL. */
void driver_hold_stream(void *stream) {
    pthread_mutex_lock(&mutex);
    held = stream;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* For the tests: returns the number of tasks that a stream has received. */
long driver_given(Stream *stream) {
    pthread_mutex_lock(&mutex);
    long found = of(stream)->given;
    pthread_mutex_unlock(&mutex);
    return found;
}

int cuStreamSynchronize(void *stream) {
    pthread_mutex_lock(&mutex);
    int is_live = is_stream(stream);
    if (is_live) finish(of(stream));
    pthread_mutex_unlock(&mutex);
    return is_live ? SUCCESS : INVALID_HANDLE;
}

int cuStreamWaitEvent(void *stream, Event *event, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&mutex);
    int is_live = is_stream(stream);
    if (is_live) give(of(stream), (Task){.kind = WAIT, .event = event, .number = event->recorded});
    pthread_mutex_unlock(&mutex);
    return is_live ? SUCCESS : INVALID_HANDLE;
}

int cuEventCreate(Event **event, unsigned flags) {
    (void)flags;
    if (!current) return INVALID_CONTEXT;
    *event = calloc(1, sizeof **event);
    (*event)->references = 1;
    pthread_mutex_lock(&mutex);
    events++;
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

int cuEventRecord(Event *event, void *stream) {
    if (!current || (stream && stream == __atomic_load_n(&capturing, __ATOMIC_SEQ_CST))) return INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    int is_live = is_stream(stream);
    if (is_live) give(of(stream), (Task){.kind = RECORD, .event = event, .number = ++event->recorded});
    pthread_mutex_unlock(&mutex);
    return is_live ? SUCCESS : INVALID_HANDLE;
}

int cuEventSynchronize(Event *event) {
    pthread_mutex_lock(&mutex);
    long number = event->recorded;
    while (event->done < number) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

int cuEventDestroy_v2(Event *event) {
    pthread_mutex_lock(&mutex);
    events--;
    release(event);
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    if (!current || mode != RELAXED) return INVALID_CONTEXT;
    char *memory = malloc(bytes);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, 0xA5, bytes);
    pthread_mutex_lock(&mutex);
    if (++allocations > peak_allocations) peak_allocations = allocations;
    put(allocated, memory, bytes);
    pthread_mutex_unlock(&mutex);
    *address = (size_t)memory;
    return SUCCESS;
}

int cuMemFree_v2(unsigned long long address) {
    if (!current || mode != RELAXED) return INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    while (is_freeing_held) pthread_cond_wait(&changed, &mutex);
    int i = find(allocated, (char *)(size_t)address, 1);
    if (i < 0) { pthread_mutex_unlock(&mutex); return INVALID_VALUE; }
    memset(allocated[i].at, 0x5A, allocated[i].bytes);
    allocated[i].at = NULL;
    allocations--;
    pthread_mutex_unlock(&mutex);
    free((void *)(size_t)address);
    return SUCCESS;
}

int cuMemHostRegister_v2(char *at, size_t bytes, unsigned flags) {
    (void)flags;
    if (!current || mode != RELAXED) return INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    put(pinned, at, bytes);
    registrations++;
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

int cuMemHostUnregister(char *at) {
    pthread_mutex_lock(&mutex);
    int i = find(pinned, at, 1);
    if (i >= 0) { pinned[i].at = NULL; registrations--; }
    pthread_mutex_unlock(&mutex);
    return i < 0 ? INVALID_VALUE : SUCCESS;
}

int cuMemHostAlloc(char **at, size_t bytes, unsigned flags) {
    (void)flags;
    if (!current) return INVALID_CONTEXT;
    *at = malloc(bytes);
    pthread_mutex_lock(&mutex);
    put(pinned, *at, bytes);
    registrations++;
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

int cuMemFreeHost(char *at) {
    int result = cuMemHostUnregister(at);
    if (result == SUCCESS) free(at);
    return result;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const char *from, size_t bytes, void *stream) {
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    int inside = find(allocated, (char *)(size_t)to, bytes) >= 0;
    if (find(pinned, from, bytes) < 0) unpinned_copies++;
    if (inside) give(of(stream), (Task){.kind = COPY, .to = (char *)(size_t)to, .from = from, .bytes = bytes});
    pthread_mutex_unlock(&mutex);
    return inside ? SUCCESS : INVALID_VALUE;
}

int cuMemcpyDtoHAsync_v2(char *to, unsigned long long from, size_t bytes, void *stream) {
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    int inside = find(allocated, (char *)(size_t)from, bytes) >= 0;
    if (inside) give(of(stream), (Task){.kind = COPY, .to = to, .from = (char *)(size_t)from, .bytes = bytes});
    if (inside && find(pinned, to, bytes) < 0) finish(of(stream));
    pthread_mutex_unlock(&mutex);
    return inside ? SUCCESS : INVALID_VALUE;
}

int cuMemcpyDtoH_v2(char *to, unsigned long long from, size_t bytes) {
    pthread_mutex_lock(&mutex);
    int inside = find(allocated, (char *)(size_t)from, bytes) >= 0;
    pthread_mutex_unlock(&mutex);
    if (inside) memcpy(to, (char *)(size_t)from, bytes);
    return inside ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : error == INVALID_CONTEXT ? "invalid device context"
        : error == INVALID_HANDLE ? "invalid resource handle" : "invalid argument";
    return SUCCESS;
}
