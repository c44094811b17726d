#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "status.h"

namespace tilegraph {

std::string read_file(const std::string& path, size_t limit, const std::string& what) {
  auto fail = [&](OrtErrorCode code, const std::string& reason) {
    throw Error(code, cat(what, " '", path, "' ", reason, "; a model that tilegraph wrote needs its whole folder: copy it again"));
  };
  struct Descriptor {
    int fd;
    ~Descriptor() {
      if (fd >= 0) close(fd);
    }
  } file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // not blocking: a FIFO must not hang the session
  if (file.fd < 0) fail(ORT_NO_SUCHFILE, cat("cannot be opened (", std::strerror(errno), ")"));
  struct stat info;
  if (fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) fail(ORT_INVALID_GRAPH, "is not a regular file");
  if (static_cast<uint64_t>(info.st_size) > limit) fail(ORT_INVALID_GRAPH, cat("is larger than ", limit, " bytes"));
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t used = 0;
  while (used < content.size()) {
    ssize_t n = read(file.fd, content.data() + used, content.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(ORT_NO_SUCHFILE, cat("cannot be read (", std::strerror(errno), ")"));
    if (n == 0) break;
    used += static_cast<size_t>(n);
  }
  content.resize(used);
  return content;
}

}  // namespace tilegraph
