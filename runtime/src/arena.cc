#include "arena.h"

#include "bytes.h"

namespace tilegraph {

ArenaPool::Lease::~Lease() {
  if (!pool_ || !buffer_.data) return;
  std::lock_guard lock(pool_->mutex_);
  pool_->free_.push_back(std::move(buffer_));  // never grows here: acquire has made room for every buffer there is
}

ArenaPool::Lease ArenaPool::acquire(size_t bytes) {
  if (bytes == 0) return {};
  Buffer buffer;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      buffer = std::move(free_.back());
      free_.pop_back();
    } else {
      free_.reserve(++buffers_);
    }
  }
  // From here on the lease owns it, so that a failed allocation does not lose the place.
  if (buffer.bytes < bytes) {
    buffer.data.reset();  // first, so that both are never there together
    size_t rounded = round_up_bytes(bytes);
    buffer.data.reset(static_cast<char*>(std::aligned_alloc(kMemoryAlignment, rounded)));
    buffer.bytes = rounded;
    if (!buffer.data) throw std::bad_alloc();
  }
  return {this, std::move(buffer)};
}

}  // namespace tilegraph
