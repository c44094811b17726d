// A compiled library in this process: loaded once per content, shared by all sessions.
#pragma once

#include <tvm/ffi/c_api.h>  // the layout of TVMFFIAny and the type of a kernel; nothing of TVM is linked

#include <memory>
#include <string>
#include <string_view>

#include "image.h"

namespace tilegraph {

using KernelFunction = TVMFFISafeCallType;

// kAuto: the first that works of placed in memory (image.h), a memory file and a temporary file.
enum class Loader { kAuto, kPlace, kMemory, kFile };

class Library {
 public:
  Library(std::string_view image, Loader loader, const std::string& origin);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // The kernel `symbol` (exported as __tvm_ffi_<symbol>), or null.
  KernelFunction find(const std::string& symbol) const;

 private:
  void load_memory(std::string_view image);
  void load_file(std::string_view image);
  void* address(const std::string& symbol) const;

  std::unique_ptr<Image> placed_;
  void* handle_ = nullptr;
  int descriptor_ = -1;
};

// The library with these bytes. `sha256` is the hash of `image`, computed by the caller; `origin` names it in messages.
// Throws INVALID_GRAPH for a library that this runtime cannot serve, FAIL if the system does not load it.
std::shared_ptr<Library> load_library(std::string_view image, const std::string& sha256, Loader loader,
                                      const std::string& origin);

// The message that a kernel of the calling thread left with its error hook, forgotten afterwards.
std::string take_kernel_error();

}  // namespace tilegraph
