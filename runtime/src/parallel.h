// Kernel calls, one after the other, split over ONNX Runtime's own thread pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "library.h"
#include "status.h"

namespace tilegraph {

inline constexpr int kTaskLimit = 4096;

// A call with everything known but who runs which part. `arguments` is a whole row: pointers, scratch, sizes, begin, end.
struct Launch {
  KernelFunction function;
  TVMFFIAny* arguments;
  int32_t count;            // of arguments
  int32_t scratch_at;       // index of the scratch pointer
  int64_t first, end;       // the part of the extent to do, not empty; `first` is a multiple of `align`
  int64_t align;            // every begin is a multiple of it
  int tasks;                // from task_count
  char* scratch;            // a block of scratch_bytes for each thread, or null; what a call's tasks leave in one stays
  size_t scratch_bytes;     // of one task, a multiple of 64
};

inline constexpr size_t kMark = 64;  // bytes that a block begins with, 0 for the first task of a launch that gets it

// How many tasks [0, extent) is split into: one for every `grain` units, rounded up to a power of two so that threads get
// equal numbers, at most `cap`, each with a whole multiple of `align` units except the last. At least 1 for extent >= 1.
// Where every multiple of `align` is worth a task and they are few, each is one; still at most `cap` run at a time.
int task_count(int64_t extent, int64_t grain, int64_t align, int cap);

// What went wrong: which of the launches, and the kernel's message.
struct Failed {
  size_t number;
  std::string message;
};

// Runs `count` calls in order, each after all tasks of the one before. The pool is asked once for as many as have several
// tasks: its threads go from call to call by themselves, and none waits for a thread that the pool never started.
// Returns after all tasks; throws Failed if one fails, and leaves out the calls behind it. At most `threads` take part.
void launch(const OrtKernelContext* context, const Launch* calls, size_t count, int threads);

inline void set_pointer(TVMFFIAny& argument, void* pointer) {
  argument.type_index = pointer ? kTVMFFIOpaquePtr : kTVMFFINone;
  argument.zero_padding = 0;
  argument.v_ptr = pointer;
}

inline void set_integer(TVMFFIAny& argument, int64_t value) {
  argument.type_index = kTVMFFIInt;
  argument.zero_padding = 0;
  argument.v_int64 = value;
}

}  // namespace tilegraph
