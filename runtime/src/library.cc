#include "library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "elf.h"
#include "status.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace tilegraph {
namespace {

// Plain memory: a kernel may fail on any thread, also one that is about to end.
thread_local char kernel_error[1024];

extern "C" void tilegraph_keep_error(const char* kind, const char** parts, int32_t count) {
  size_t used = 0;
  auto append = [&](const char* text) {
    if (!text) return;
    size_t n = std::min(std::strlen(text), sizeof kernel_error - 1 - used);
    std::memcpy(kernel_error + used, text, n);
    used += n;
  };
  append(kind);
  if (kind && parts && count > 0) append(": ");
  for (int32_t i = 0; parts && i < count; ++i) append(parts[i]);
  kernel_error[used] = 0;
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(ORT_FAIL, cat("cannot write the library's copy: ", std::strerror(n < 0 ? errno : ENOSPC)));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void* open_library(const char* path) {
  dlerror();
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* reason = dlerror();
    throw Error(ORT_FAIL, reason ? reason : "unknown reason");
  }
  return handle;
}

}  // namespace

std::string take_kernel_error() {
  std::string message = kernel_error;
  kernel_error[0] = 0;
  return message.empty() ? "the kernel gave no message" : message;
}

void Library::load_memory(std::string_view image) {
  // MFD_EXEC is refused by kernels that do not know it and needed by some that do.
  int fd = memfd_create("tilegraph-kernels", MFD_CLOEXEC | MFD_EXEC);
  if (fd < 0) fd = memfd_create("tilegraph-kernels", MFD_CLOEXEC);
  if (fd < 0) throw Error(ORT_FAIL, cat("memfd_create: ", std::strerror(errno)));
  try {
    write_all(fd, image);
    handle_ = open_library(cat("/proc/self/fd/", fd).c_str());
  } catch (...) {
    close(fd);
    throw;
  }
  // Kept open until dlclose: the dynamic linker knows loaded libraries by their path, and a descriptor number that
  // is used again would be taken for this library.
  descriptor_ = fd;
}

void Library::load_file(std::string_view image) {
  static std::atomic<unsigned> counter{0};
  const char* named = std::getenv("TMPDIR");
  std::string reasons;
  for (std::string folder : {std::string(named ? named : ""), std::string("/tmp"), std::string("/var/tmp")}) {
    if (folder.empty()) continue;
    // Process and count make a path that this process never uses twice (see load_memory).
    std::string path = cat(folder, "/tilegraph-", getpid(), "-", counter++, "-XXXXXX");
    int fd = mkostemp(path.data(), O_CLOEXEC);
    if (fd < 0) {
      reasons += cat(" ", folder, ": ", std::strerror(errno), ";");
      continue;
    }
    try {
      write_all(fd, image);
      fchmod(fd, S_IRUSR | S_IXUSR);
      handle_ = open_library(path.c_str());
      unlink(path.c_str());
      close(fd);
      return;
    } catch (const Error& e) {
      unlink(path.c_str());
      close(fd);
      reasons += cat(" ", e.what(), ";");
    }
  }
  throw Error(ORT_FAIL, cat("no temporary folder could hold and load it (set TMPDIR):", reasons));
}

Library::Library(std::string_view image, Loader loader, const std::string& origin) {
  std::string problem = elf_problem(image);
  if (!problem.empty())
    throw Error(ORT_INVALID_GRAPH, cat("compiled library '", origin, "' cannot be served: ", problem,
                                       "; run tilegraph optimize again on the original model"));
  std::string reasons;
  if (loader == Loader::kAuto || loader == Loader::kPlace) {
    placed_ = Image::place(image, reasons);
    if (!placed_) reasons = cat(" by its own means: ", reasons, ";");
  }
  if (!placed_ && (loader == Loader::kAuto || loader == Loader::kMemory)) {
    try {
      load_memory(image);
    } catch (const Error& e) {
      reasons += cat(" from memory: ", e.what(), ";");
    }
  }
  if (!placed_ && !handle_ && (loader == Loader::kAuto || loader == Loader::kFile)) {
    try {
      load_file(image);
    } catch (const Error& e) {
      reasons += cat(" from a file: ", e.what());
    }
  }
  if (!placed_ && !handle_) throw Error(ORT_FAIL, cat("compiled library '", origin, "' cannot be loaded:", reasons));

  using Hook = void (*)(const char*, const char**, int32_t);
  if (auto* hook = static_cast<Hook*>(address("tilegraph_set_error_parts"))) *hook = &tilegraph_keep_error;
}

Library::~Library() {
  if (handle_) dlclose(handle_);
  if (descriptor_ >= 0) close(descriptor_);
}

void* Library::address(const std::string& symbol) const {
  return placed_ ? placed_->find(symbol) : dlsym(handle_, symbol.c_str());
}

KernelFunction Library::find(const std::string& symbol) const {
  return reinterpret_cast<KernelFunction>(address("__tvm_ffi_" + symbol));
}

std::shared_ptr<Library> load_library(std::string_view image, const std::string& sha256, Loader loader,
                                      const std::string& origin) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Library>> loaded;
  std::lock_guard lock(mutex);
  std::erase_if(loaded, [](const auto& entry) { return entry.second.expired(); });
  if (auto found = loaded.find(sha256); found != loaded.end())
    if (auto library = found->second.lock()) return library;
  auto library = std::make_shared<Library>(image, loader, origin);
  loaded[sha256] = library;
  return library;
}

}  // namespace tilegraph
