// Memory for intermediates, kept by the session: its partitions run one after the other and use the same buffers.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tilegraph {

class ArenaPool {
 public:
  struct Buffer {
    std::unique_ptr<char, decltype(&std::free)> data{nullptr, &std::free};
    size_t bytes = 0;
  };

  // A buffer for the time of one run; it goes back to the pool by itself.
  class Lease {
   public:
    Lease() = default;
    Lease(ArenaPool* pool, Buffer buffer) : pool_(pool), buffer_(std::move(buffer)) {}
    Lease(Lease&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), buffer_(std::move(other.buffer_)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    char* data() const { return buffer_.data.get(); }

   private:
    ArenaPool* pool_ = nullptr;
    Buffer buffer_;
  };

  // At least `bytes` bytes (null for 0), aligned to kMemoryAlignment. Once every concurrent run has its buffer and the largest
  // size was seen, nothing is allocated any more. Throws bad_alloc.
  Lease acquire(size_t bytes);

 private:
  std::mutex mutex_;
  size_t buffers_ = 0;          // in all, lent ones included
  std::vector<Buffer> free_;    // the last one used is the first one taken
};

}  // namespace tilegraph
