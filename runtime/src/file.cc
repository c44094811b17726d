#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "sha256.h"
#include "status.h"

namespace tilegraph {

namespace {

[[noreturn]] void fail(OrtErrorCode code, const std::string& path, const std::string& what, const std::string& reason) {
  throw Error(code, cat(what, " '", path, "' ", reason, "; a model that tilegraph wrote needs its whole folder: copy it again"));
}

// An open regular file.
class File {
 public:
  File(const std::string& path, const std::string& what)
      : path_(path), what_(what), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a FIFO must not hang
    if (fd_ < 0) fail(ORT_NO_SUCHFILE, path_, what_, cat("cannot be opened (", std::strerror(errno), ")"));
    struct stat info;
    if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(fd_);
      fail(ORT_INVALID_GRAPH, path_, what_, "is not a regular file");
    }
    size_ = static_cast<uint64_t>(info.st_size);
  }
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t size() const { return size_; }
  // Fills the room as far as there is something left; how many bytes.
  size_t read_some(char* to, size_t room) {
    size_t used = 0;
    while (used < room) {
      ssize_t n = read(fd_, to + used, room - used);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(ORT_NO_SUCHFILE, path_, what_, cat("cannot be read (", std::strerror(errno), ")"));
      if (n == 0) break;
      used += static_cast<size_t>(n);
    }
    return used;
  }

 private:
  const std::string& path_;
  const std::string& what_;
  int fd_;
  uint64_t size_ = 0;
};

}  // namespace

std::string folder_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string read_file(const std::string& path, size_t limit, const std::string& what) {
  File file(path, what);
  if (file.size() > limit) fail(ORT_INVALID_GRAPH, path, what, cat("is larger than ", limit, " bytes"));
  std::string content(static_cast<size_t>(file.size()), '\0');
  content.resize(file.read_some(content.data(), content.size()));
  return content;
}

std::string sha256_of_file(const std::string& path, const std::string& what) {
  File file(path, what);
  Sha256 digest;
  std::string piece(size_t{1} << 20, '\0');
  while (size_t n = file.read_some(piece.data(), piece.size())) digest.add({piece.data(), n});
  return digest.hex();
}

}  // namespace tilegraph
