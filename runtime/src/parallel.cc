#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace tilegraph {
namespace {

constexpr size_t kStackArguments = 512;
constexpr int kFewUnits = 4;  // for each task that there may be: large ones are tasks of their own
constexpr int kSpins = 2000;  // looks at a step that others finish, some 50 µs, before a thread gives up its CPU in between

int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int run_whole(const Launch& call) {
  if (call.scratch) std::memset(call.scratch, 0, kMark);
  set_pointer(call.arguments[call.scratch_at], call.scratch);
  call.arguments[call.count - 2].v_int64 = call.first;
  call.arguments[call.count - 1].v_int64 = call.end;
  TVMFFIAny result{};
  return call.function(nullptr, call.arguments, call.count, &result);
}

int run_task(const Launch& call, int64_t task, size_t block, bool fresh) {
  int64_t units = ceil_divide(call.end - call.first, call.align);
  int64_t base = units / call.tasks, extra = units % call.tasks;  // the first `extra` tasks get one more
  int64_t first = task * base + std::min(task, extra);
  int64_t last = first + base + (task < extra);
  TVMFFIAny local[kStackArguments];
  std::vector<TVMFFIAny> large;
  TVMFFIAny* row = local;
  if (static_cast<size_t>(call.count) > kStackArguments) {
    large.resize(static_cast<size_t>(call.count));
    row = large.data();
  }
  std::memcpy(row, call.arguments, sizeof(TVMFFIAny) * static_cast<size_t>(call.count));
  if (call.scratch) {
    char* scratch = call.scratch + block * call.scratch_bytes;
    if (fresh) std::memset(scratch, 0, kMark);
    set_pointer(row[call.scratch_at], scratch);
  }
  row[call.count - 2].v_int64 = call.first + first * call.align;
  row[call.count - 1].v_int64 = task + 1 == call.tasks ? call.end : call.first + last * call.align;
  TVMFFIAny result{};
  return call.function(nullptr, row, call.count, &result);
}

// The calls of one launch on the pool. Every thread that arrives takes tasks of the current call, and when none is left
// waits for those that others have begun: a thread that the pool never starts is not waited for.
class Chain {
 public:
  Chain(const Launch* calls, size_t count) : calls_(calls), count_(count) {}

  void work() {
    bool top = workers_.fetch_add(1, std::memory_order_relaxed) & 1;
    uint64_t seen = open_.load(std::memory_order_acquire);
    for (;;) {
      uint64_t number = seen >> 32;
      if (number >= count_) return;
      const Launch& call = calls_[number];
      int done = 0;
      size_t block = 0;
      // From both ends, so that a thread gets the part of a call that it had of the one before, which its caches hold.
      for (std::optional<int64_t> task; (task = take(seen, number, call.tasks, top)); ++done) {
        if (!done) block = blocks_.fetch_add(1, std::memory_order_relaxed);
        if (failed_.load(std::memory_order_relaxed)) continue;
        int code = call.tasks == 1 ? run_whole(call) : run_task(call, *task, block, !done);
        if (code != 0) fail(number);
      }
      if (done && done_.fetch_add(done, std::memory_order_acq_rel) + done == call.tasks) {
        done_.store(0, std::memory_order_relaxed);
        blocks_.store(0, std::memory_order_relaxed);
        open_.store((failed_.load(std::memory_order_relaxed) ? count_ : number + 1) << 32, std::memory_order_release);
      }
      seen = wait(number);
    }
  }

  // Throws what failed. `before`: calls in front of those of this launch.
  void finish(size_t before) const {
    if (failed_) throw Failed{before + where_, message_};
  }

 private:
  // A task of call `number`, or nothing if all are taken. `seen`: what `open_` was.
  std::optional<int64_t> take(uint64_t& seen, uint64_t number, int tasks, bool top) {
    while (seen >> 32 == number) {
      auto low = static_cast<int64_t>(seen & 0xffff), high = static_cast<int64_t>(seen >> 16 & 0xffff);
      if (low + high >= tasks) return std::nullopt;
      uint64_t next = seen + (top ? 0x10000 : 1);
      if (open_.compare_exchange_weak(seen, next, std::memory_order_acquire, std::memory_order_acquire)) {
        seen = next;
        return top ? tasks - 1 - high : low;
      }
    }
    return std::nullopt;
  }

  uint64_t wait(uint64_t number) const {
    for (int spins = 0;; ++spins) {
      uint64_t seen = open_.load(std::memory_order_acquire);
      if (seen >> 32 != number) return seen;
      if (spins < kSpins) pause();
      else std::this_thread::yield();
    }
  }

  void fail(uint64_t number) {
    std::lock_guard lock(mutex_);
    if (failed_.exchange(true)) return;
    where_ = number;
    message_ = take_kernel_error();
  }

  const Launch* calls_;
  size_t count_;
  std::atomic<unsigned> workers_{0};
  alignas(64) std::atomic<uint64_t> open_{0};  // number of the call, and how many tasks are taken from its two ends
  alignas(64) std::atomic<int> done_{0};
  std::atomic<size_t> blocks_{0};  // of scratch that threads have taken for the current call
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  size_t where_ = 0;
  std::string message_;
};

void work_of(void* chain, size_t) noexcept { static_cast<Chain*>(chain)->work(); }

}  // namespace

int task_count(int64_t extent, int64_t grain, int64_t align, int cap) {
  // A power of two: two or four threads would share three or five tasks badly. So would they 14 units in eight tasks, of
  // which two threads do eight and six.
  int64_t worth = ceil_divide(extent, std::max<int64_t>(grain, 1)), units = ceil_divide(extent, align);
  if (cap > 1 && worth >= units && units <= std::min(kFewUnits * cap, kTaskLimit)) return static_cast<int>(units);
  auto wanted = static_cast<uint64_t>(std::clamp<int64_t>(worth, 1, cap));
  int64_t tasks = std::min(static_cast<int64_t>(std::bit_ceil(wanted)), units);
  return static_cast<int>(std::clamp<int64_t>(tasks, 1, cap));
}

void launch(const OrtKernelContext* context, const Launch* calls, size_t count, int threads) {
  auto alone = [](const Launch& call) { return call.tasks == 1; };
  const Launch* const end = calls + count;
  const Launch* first = std::find_if_not(calls, end, alone);
  const Launch* last = end;
  while (last > first && alone(last[-1])) --last;
  auto here = [&](const Launch* from, const Launch* to) {
    for (; from < to; ++from)
      if (run_whole(*from) != 0) throw Failed{static_cast<size_t>(from - calls), take_kernel_error()};
  };
  here(calls, first);
  if (first == end) return;
  Chain chain(first, static_cast<size_t>(last - first));
  int most = std::max_element(first, last, [](const Launch& a, const Launch& b) { return a.tasks < b.tasks; })->tasks;
  auto workers = static_cast<size_t>(std::min(most, threads));
  // As many batches as workers: with 0, ONNX Runtime deals them out evenly beforehand.
  check(ort->KernelContext_ParallelFor(context, work_of, workers, workers, &chain));
  chain.finish(static_cast<size_t>(first - calls));
  here(last, end);
}

}  // namespace tilegraph
