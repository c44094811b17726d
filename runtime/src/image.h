// Compiled kernels placed in memory without the dynamic linker.
//
// A library that tilegraph links holds code, constants and a table of addresses. It wants two functions of libc and has
// nothing to run when it is loaded, so placing it takes a copy and some pointers: 45 µs, where a memory file, its path
// in /proc and the dynamic linker's lists take 150 µs in a process with many libraries (docs/decisions.md).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tilegraph {

class Image {
 public:
  // The library with the bytes `file`, ready to be called; or null, with the reason in `why`, if it needs something that
  // only the dynamic linker does (constructors, thread-local variables, other libraries' symbols), or the system does not
  // let memory that was written become executable. `file` has passed elf_problem and may go afterwards.
  static std::unique_ptr<Image> place(std::string_view file, std::string& why);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // The address of an exported symbol, or null.
  void* find(std::string_view name) const;

 private:
  Image(char* base, size_t bytes) : base_(base), bytes_(bytes) {}

  char* base_;
  size_t bytes_;
  std::vector<std::pair<std::string_view, void*>> exports_;  // by name; the names lie in the placed library
};

}  // namespace tilegraph
