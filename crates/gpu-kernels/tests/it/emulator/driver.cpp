// A CUDA driver without a device: memory is this machine's, modules are shared libraries that the
// shim made, and work is done at once, or kept while it is recorded. Just the calls that the
// bindings make. It lets everything above the driver be rehearsed where there is no GPU.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

typedef int Result;
enum : Result { SUCCESS = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 101, INVALID = 1, NOT_FOUND = 500 };

static const uint64_t MEMORY_BYTES = 4ull << 30;
static const uint64_t PAGE = 4096;

struct ShimEntry {
    const char* name;
    size_t parameter_bytes;
    void (*run)(unsigned blocks, unsigned threads, unsigned shared, const void* parameter);
    int local_bytes;
};
struct Recording {
    std::vector<std::function<void()>> work;
    bool is_open = true;
};
struct Stream {
    // That which it began, or joined by waiting for an event in it.
    std::shared_ptr<Recording> recording;
    bool is_recording() const { return recording && recording->is_open; }
};
struct Event {
    std::chrono::steady_clock::time_point time;
    std::shared_ptr<Recording> recording;
};

static std::recursive_mutex lock_all;
static Result lost = SUCCESS;
static std::map<uint64_t, size_t> allocations;
static uint64_t allocated_bytes = 0;
static thread_local void* current = nullptr;

#define CALL(NAME, ...) extern "C" Result NAME(__VA_ARGS__)
#define GUARD                                              \
    std::lock_guard<std::recursive_mutex> guard(lock_all); \
    if (lost != SUCCESS) return lost

// Does work now, or keeps it for a recording.
static Result queue(Stream* stream, std::function<void()> work) {
    if (stream && stream->is_recording()) {
        stream->recording->work.push_back(std::move(work));
    } else {
        work();
    }
    return SUCCESS;
}

// Makes every later call fail with `code`, as a lost device does; 0 heals it.
extern "C" void emulator_lose(Result code) { lost = code; }

CALL(cuInit, unsigned) { return SUCCESS; }
CALL(cuDriverGetVersion, int* version) { *version = 13000; return SUCCESS; }
CALL(cuGetErrorName, Result, const char** text) { *text = "EMULATED"; return SUCCESS; }
CALL(cuGetErrorString, Result, const char** text) { *text = "an emulated error"; return SUCCESS; }
CALL(cuDeviceGetCount, int* count) { *count = 1; return SUCCESS; }
CALL(cuDeviceGet, int* device, int ordinal) { *device = ordinal; return SUCCESS; }
CALL(cuDeviceGetName, char* name, int bytes, int) {
    strncpy(name, "emulated device", bytes);
    return SUCCESS;
}
CALL(cuDeviceTotalMem_v2, size_t* bytes, int) { *bytes = MEMORY_BYTES; return SUCCESS; }
CALL(cuDeviceGetAttribute, int* value, int attribute, int) {
    const std::map<int, int> values = {{16, 2}, {38, 1 << 20}, {75, 9}, {76, 0}, {97, 232448}};
    const auto found = values.find(attribute);
    *value = found == values.end() ? 0 : found->second;
    return SUCCESS;
}
CALL(cuDevicePrimaryCtxRetain, void** context, int) { *context = &lost; return SUCCESS; }
CALL(cuDevicePrimaryCtxRelease_v2, int) { return SUCCESS; }
CALL(cuCtxGetCurrent, void** context) { *context = current; return SUCCESS; }
CALL(cuCtxSetCurrent, void* context) { current = context; return SUCCESS; }
CALL(cuCtxSynchronize) { GUARD; return SUCCESS; }

CALL(cuMemGetInfo_v2, size_t* free, size_t* total) {
    GUARD;
    *total = MEMORY_BYTES;
    *free = MEMORY_BYTES - allocated_bytes;
    return SUCCESS;
}
CALL(cuMemAlloc_v2, uint64_t* address, size_t bytes) {
    GUARD;
    if (bytes > MEMORY_BYTES - allocated_bytes) return OUT_OF_MEMORY;
    // Up to a page that nobody may touch, so that an access beyond the end is seen.
    const size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS;
    char* memory = (char*)mmap(nullptr, pages + PAGE, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (memory == MAP_FAILED) return OUT_OF_MEMORY;
    mprotect(memory + pages, PAGE, PROT_NONE);
    // What was never written must not look like zeros.
    memset(memory, 0xA5, pages);
    *address = (uint64_t)(memory + pages - (bytes + 15) / 16 * 16);
    allocations[*address] = bytes;
    allocated_bytes += bytes;
    return SUCCESS;
}
CALL(cuMemFree_v2, uint64_t address) {
    GUARD;
    const auto found = allocations.find(address);
    if (found == allocations.end()) return INVALID;
    allocated_bytes -= found->second;
    munmap((void*)(address / PAGE * PAGE), (found->second + PAGE - 1) / PAGE * PAGE + PAGE);
    allocations.erase(found);
    return SUCCESS;
}
CALL(cuMemHostAlloc, void** memory, size_t bytes, unsigned) {
    GUARD;
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return SUCCESS;
}
CALL(cuMemFreeHost, void* memory) { free(memory); return SUCCESS; }
CALL(cuMemsetD8Async, uint64_t address, unsigned char byte, size_t count, Stream* stream) {
    GUARD;
    return queue(stream, [=] { memset((void*)address, byte, count); });
}
static Result copy(void* to, const void* from, size_t bytes, Stream* stream) {
    GUARD;
    return queue(stream, [=] { memmove(to, from, bytes); });
}
CALL(cuMemcpyHtoDAsync_v2, uint64_t to, const void* from, size_t bytes, Stream* stream) {
    return copy((void*)to, from, bytes, stream);
}
CALL(cuMemcpyDtoHAsync_v2, void* to, uint64_t from, size_t bytes, Stream* stream) {
    return copy(to, (const void*)from, bytes, stream);
}
CALL(cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    return copy((void*)to, (const void*)from, bytes, stream);
}

// What `shim_warp.h` reads of up to three dimensions.
CALL(cuTensorMapEncodeTiled, uint64_t* map, int type, unsigned rank, void* address, const uint64_t* size,
     const uint64_t* strides, const unsigned* piece, const unsigned*, int, int, int, int) {
    const int HALVES = 6, BF16 = 9;
    memset(map, 0, 128);
    map[0] = (uint64_t)address;
    map[1] = size[0];
    map[2] = size[1];
    map[3] = rank > 2 ? size[2] : 1;
    map[4] = strides[0];
    map[5] = rank > 2 ? strides[1] : 0;
    map[6] = type == HALVES || type == BF16 ? 2 : 4;
    map[7] = piece[1];
    return SUCCESS;
}

CALL(cuStreamCreate, Stream** stream, unsigned) { GUARD; *stream = new Stream; return SUCCESS; }
CALL(cuStreamCreateWithPriority, Stream** stream, unsigned, int) {
    GUARD;
    *stream = new Stream;
    return SUCCESS;
}
CALL(cuCtxGetStreamPriorityRange, int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}
CALL(cuStreamDestroy_v2, Stream* stream) { delete stream; return SUCCESS; }
CALL(cuStreamSynchronize, Stream*) { GUARD; return SUCCESS; }
CALL(cuStreamWaitEvent, Stream* stream, Event* event, unsigned) {
    GUARD;
    if (event->recording && event->recording->is_open) stream->recording = event->recording;
    return SUCCESS;
}
CALL(cuStreamIsCapturing, Stream* stream, int* status) {
    GUARD;
    *status = stream->is_recording() ? 1 : 0;
    return SUCCESS;
}
CALL(cuStreamBeginCapture_v2, Stream* stream, int) {
    GUARD;
    stream->recording.reset(new Recording);
    return SUCCESS;
}
CALL(cuStreamEndCapture, Stream* stream, Recording** graph) {
    GUARD;
    stream->recording->is_open = false;
    *graph = new Recording(*stream->recording);
    return SUCCESS;
}
CALL(cuGraphInstantiateWithFlags, Recording** executable, Recording* graph, unsigned long long) {
    GUARD;
    *executable = new Recording(*graph);
    return SUCCESS;
}
CALL(cuGraphLaunch, Recording* executable, Stream*) {
    GUARD;
    for (const auto& work : executable->work) work();
    return SUCCESS;
}
CALL(cuGraphGetNodes, Recording* graph, void**, size_t* count) {
    GUARD;
    *count = graph->work.size();
    return SUCCESS;
}
CALL(cuGraphExecDestroy, Recording* executable) { delete executable; return SUCCESS; }
CALL(cuGraphDestroy, Recording* graph) { delete graph; return SUCCESS; }

CALL(cuEventCreate, Event** event, unsigned) { GUARD; *event = new Event; return SUCCESS; }
CALL(cuEventDestroy_v2, Event* event) { delete event; return SUCCESS; }
CALL(cuEventRecord, Event* event, Stream* stream) {
    GUARD;
    event->recording = stream->is_recording() ? stream->recording : nullptr;
    event->time = std::chrono::steady_clock::now();
    return SUCCESS;
}
CALL(cuEventRecordWithFlags, Event* event, Stream* stream, unsigned) {
    GUARD;
    return queue(stream, [=] { event->time = std::chrono::steady_clock::now(); });
}
CALL(cuEventQuery, Event*) { GUARD; return SUCCESS; }
CALL(cuEventSynchronize, Event*) { GUARD; return SUCCESS; }
static Result elapsed(float* ms, Event* start, Event* end) {
    GUARD;
    *ms = std::chrono::duration<float, std::milli>(end->time - start->time).count();
    return SUCCESS;
}
CALL(cuEventElapsedTime, float* ms, Event* start, Event* end) { return elapsed(ms, start, end); }
CALL(cuEventElapsedTime_v2, float* ms, Event* start, Event* end) { return elapsed(ms, start, end); }

// A shared library as its bytes, which end with its section headers.
CALL(cuModuleLoadData, void** module, const void* image) {
    GUARD;
    const Elf64_Ehdr* head = static_cast<const Elf64_Ehdr*>(image);
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0) return INVALID;
    const size_t bytes = head->e_shoff + (size_t)head->e_shentsize * head->e_shnum;
    // The loader knows a library by its path, so each needs one of its own.
    char path[] = "/tmp/packed-adamw-module-XXXXXX";
    const int file = mkstemp(path);
    const bool is_written = write(file, image, bytes) == (ssize_t)bytes;
    close(file);
    *module = is_written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    unlink(path);
    return *module ? SUCCESS : INVALID;
}
CALL(cuModuleUnload, void* module) { dlclose(module); return SUCCESS; }
CALL(cuModuleGetFunction, const ShimEntry** function, void* module, const char* name) {
    GUARD;
    const ShimEntry* entry = static_cast<const ShimEntry*>(dlsym(module, "shim_entries"));
    for (; entry && entry->name; entry++) {
        if (strcmp(entry->name, name) == 0) {
            *function = entry;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}
CALL(cuFuncGetAttribute, int* value, int attribute, const ShimEntry* kernel) {
    const int LOCAL_SIZE_BYTES = 3;
    *value = attribute == LOCAL_SIZE_BYTES ? kernel->local_bytes : 0;
    return SUCCESS;
}
CALL(cuFuncSetAttribute, const ShimEntry*, int, int) { return SUCCESS; }
CALL(cuLaunchKernel, const ShimEntry* kernel, unsigned blocks, unsigned, unsigned, unsigned threads,
     unsigned, unsigned, unsigned shared, Stream* stream, void** parameters, void**) {
    GUARD;
    // Kept as 16-byte pieces, for the alignment that a parameter may want.
    struct alignas(16) Piece { char bytes[16]; };
    std::vector<Piece> copy((kernel->parameter_bytes + 15) / 16);
    memcpy((void*)copy.data(), parameters[0], kernel->parameter_bytes);
    return queue(stream, [=] { kernel->run(blocks, threads, shared, copy.data()); });
}
// Attributes say when a kernel may begin; here it begins when the one before has ended.
struct Launch {
    unsigned blocks[3], threads[3], shared;
    Stream* stream;
};
CALL(cuLaunchKernelEx, const Launch* launch, const ShimEntry* kernel, void** parameters, void** more) {
    return cuLaunchKernel(kernel, launch->blocks[0], 1, 1, launch->threads[0], 1, 1, launch->shared, launch->stream,
                          parameters, more);
}
