#include "weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "bytes.h"

namespace tilegraph {
namespace {

constexpr size_t kLeast = size_t{1} << 20;  // bytes below which pages do not matter
constexpr size_t kEnds = 64;                // bytes that are compared

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  // What tells this state of a file from all others; empty where there is no regular file.
  std::string identity() const {
    struct stat info;
    if (fd_ < 0 || fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) return "";
    return cat(info.st_dev, ' ', info.st_ino, ' ', info.st_size, ' ', info.st_mtim.tv_sec, ' ', info.st_mtim.tv_nsec);
  }
  bool read_all(char* to, size_t bytes, uint64_t offset) const {
    for (size_t done = 0; done < bytes;) {
      ssize_t n = pread(fd_, to + done, bytes - done, static_cast<off_t>(offset + done));
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }

 private:
  int fd_;
};

}  // namespace

FilePart file_part(const OrtValueInfo* value, const std::string& folder) {
  OrtExternalInitializerInfo* info = nullptr;
  if (OrtStatus* status = ort->ValueInfo_GetExternalInitializerInfo(value, &info)) {
    ort->ReleaseStatus(status);
    return {};
  }
  if (!info) return {};
  FilePart part;
  const char* path = ort->ExternalInitializerInfo_GetFilePath(info);
  int64_t offset = ort->ExternalInitializerInfo_GetFileOffset(info);
  size_t bytes = ort->ExternalInitializerInfo_GetByteSize(info);
  if (path && *path && offset >= 0 && bytes >= kLeast)
    part = {*path == '/' ? std::string(path) : cat(folder, "/", path), static_cast<uint64_t>(offset), bytes};
  ort->ReleaseExternalInitializerInfo(info);
  return part;
}

std::shared_ptr<const WeightCopies> WeightCopies::of(const std::vector<FilePart>& parts, size_t limit) {
  std::vector<FilePart> wanted;
  size_t bytes = 0;
  std::string key;
  std::map<std::string, std::string> identities;
  for (const FilePart& part : parts) {
    if (part.bytes > limit - bytes) break;
    auto [identity, added] = identities.try_emplace(part.path);
    if (added) identity->second = Descriptor(part.path).identity();
    if (identity->second.empty()) break;
    key += cat(identity->second, ' ', part.offset, ' ', part.bytes, '\n');
    bytes += round_up_bytes(part.bytes);
    wanted.push_back(part);
    if (bytes >= limit) break;
  }
  if (wanted.empty()) return nullptr;
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const WeightCopies>> known;
  std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  if (auto found = known.find(key); found != known.end())
    if (auto copies = found->second.lock()) return copies;
  try {
    auto copies = std::make_shared<WeightCopies>(bytes);
    copies->fill(wanted);
    known[key] = copies;
    return copies;
  } catch (const std::bad_alloc&) {
    return nullptr;  // weights are served from where ONNX Runtime has them
  }
}

WeightCopies::WeightCopies(size_t bytes) : bytes_(bytes) {
  reserved_ = add_bytes(bytes, kLargePage);
  void* memory = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
}

WeightCopies::~WeightCopies() { munmap(memory_, reserved_); }

void WeightCopies::fill(const std::vector<FilePart>& parts) {
  char* first = memory_ + (kLargePage - reinterpret_cast<uintptr_t>(memory_) % kLargePage) % kLargePage;
  // Where the system has none to give, these are pages of 4 KB, which serve as well as the file's.
  madvise(first, bytes_, MADV_HUGEPAGE);
  for (const FilePart& part : parts) {
    if (!Descriptor(part.path).read_all(first, part.bytes, part.offset)) break;
    copies_.push_back({first, part.bytes});
    first += round_up_bytes(part.bytes);
  }
  mprotect(memory_, reserved_, PROT_READ);
}

size_t WeightCopies::bytes() const {
  size_t sum = 0;
  for (const Copy& copy : copies_) sum += copy.bytes;
  return sum;
}

const char* WeightCopies::find(size_t part, const char* original) const {
  if (part >= copies_.size()) return nullptr;
  const Copy& copy = copies_[part];
  size_t rest = copy.bytes - std::min(kEnds, copy.bytes);
  bool same = std::memcmp(copy.data, original, copy.bytes - rest) == 0 &&
              std::memcmp(copy.data + rest, original + rest, copy.bytes - rest) == 0;
  return same ? copy.data : nullptr;
}

}  // namespace tilegraph
