#include "parallel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace tilegraph {
namespace {

constexpr size_t kStackArguments = 512;

int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// The error of a failed task: the first one wins.
struct Failure {
  std::atomic<bool> happened{false};
  std::mutex mutex;
  std::string message;

  void record() {
    std::lock_guard lock(mutex);
    if (!happened.exchange(true)) message = take_kernel_error();
  }
};

// Hands out scratch blocks. The lowest free one first: only as many are ever touched as tasks run at the same time, and
// they stay warm in the cache; a kernel finds there what an earlier task of the launch made and need not make it again.
class Blocks {
 public:
  // The block, and whether nobody had it before.
  std::pair<size_t, bool> take() {
    for (;;) {
      for (size_t word = 0; word < used_.size(); ++word) {
        uint64_t seen = used_[word].load(std::memory_order_relaxed);
        while (~seen) {
          int bit = std::countr_one(seen);
          uint64_t one = uint64_t{1} << bit;
          if (used_[word].compare_exchange_weak(seen, seen | one, std::memory_order_acquire))
            return {word * 64 + static_cast<size_t>(bit), !(had_[word].fetch_or(one, std::memory_order_relaxed) & one)};
        }
      }
    }
  }
  void give_back(size_t block) {
    used_[block / 64].fetch_and(~(uint64_t{1} << block % 64), std::memory_order_release);
  }

 private:
  std::array<std::atomic<uint64_t>, kTaskLimit / 64> used_{}, had_{};
};

struct Job {
  const Launch& call;
  int64_t base, extra;  // how many times `align` units a task gets; the first `extra` tasks get one more
  Blocks blocks;
  Failure failure;

  void run(int64_t task) {
    const Launch& c = call;
    int64_t first = task * base + std::min(task, extra);
    int64_t last = first + base + (task < extra);
    TVMFFIAny local[kStackArguments];
    std::vector<TVMFFIAny> large;
    TVMFFIAny* row = local;
    if (static_cast<size_t>(c.count) > kStackArguments) {
      large.resize(static_cast<size_t>(c.count));
      row = large.data();
    }
    std::memcpy(row, c.arguments, sizeof(TVMFFIAny) * static_cast<size_t>(c.count));
    size_t block = 0;
    if (c.scratch) {
      bool fresh = false;
      std::tie(block, fresh) = blocks.take();
      char* scratch = c.scratch + block * c.scratch_bytes;
      if (fresh) std::memset(scratch, 0, kMark);
      set_pointer(row[c.scratch_at], scratch);
    }
    row[c.count - 2].v_int64 = c.first + first * c.align;
    row[c.count - 1].v_int64 = task + 1 == c.tasks ? c.end : c.first + last * c.align;
    TVMFFIAny result{};
    if (c.function(nullptr, row, c.count, &result) != 0) failure.record();
    if (c.scratch) blocks.give_back(block);
  }
};

void run_task(void* job, size_t task) noexcept { static_cast<Job*>(job)->run(static_cast<int64_t>(task)); }

}  // namespace

int task_count(int64_t extent, int64_t grain, int64_t align, int cap) {
  // A power of two: two or four threads would share three or five tasks badly.
  auto wanted = static_cast<uint64_t>(std::clamp<int64_t>(ceil_divide(extent, std::max<int64_t>(grain, 1)), 1, cap));
  int64_t tasks = std::min(static_cast<int64_t>(std::bit_ceil(wanted)), ceil_divide(extent, align));
  return static_cast<int>(std::clamp<int64_t>(tasks, 1, cap));
}

void launch(const OrtKernelContext* context, const Launch& call) {
  if (call.tasks == 1) {
    if (call.scratch) std::memset(call.scratch, 0, kMark);
    set_pointer(call.arguments[call.scratch_at], call.scratch);
    call.arguments[call.count - 2].v_int64 = call.first;
    call.arguments[call.count - 1].v_int64 = call.end;
    TVMFFIAny result{};
    if (call.function(nullptr, call.arguments, call.count, &result) != 0)
      throw Error(ORT_RUNTIME_EXCEPTION, take_kernel_error());
    return;
  }
  int64_t units = ceil_divide(call.end - call.first, call.align);
  Job job{call, units / call.tasks, units % call.tasks, {}, {}};
  // As many batches as tasks: with 0, ONNX Runtime deals the tasks out evenly beforehand, and a slow thread holds all up.
  auto tasks = static_cast<size_t>(call.tasks);
  check(ort->KernelContext_ParallelFor(context, run_task, tasks, tasks, &job));
  if (job.failure.happened) throw Error(ORT_RUNTIME_EXCEPTION, job.failure.message);
}

}  // namespace tilegraph
