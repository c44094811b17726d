// Copies of weights in large pages, for kernels that do little but read them from memory.
//
// ONNX Runtime maps external initializers in pages of 4 KB. A product with one row reads each weight once, and with such
// pages a step of a decoder takes a fifth longer than with pages of 2 MB (docs/decisions.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "status.h"

namespace tilegraph {

inline constexpr size_t kLargePage = size_t{2} << 20;

// A part of a file, as ONNX Runtime knows an external initializer.
struct FilePart {
  std::string path;
  uint64_t offset = 0;
  size_t bytes = 0;  // 0: it lies in no file, or is too small to matter
};

// Where the initializer `value` lies; `folder`: the model's.
FilePart file_part(const OrtValueInfo* value, const std::string& folder);

// The copies that the sessions of one folder share.
class WeightCopies {
 public:
  // Copies of `parts` in this order, at most `limit` bytes of them. Sessions of this process that ask for the same parts of
  // the same files get the same copies. Null where nothing is copied.
  static std::shared_ptr<const WeightCopies> of(const std::vector<FilePart>& parts, size_t limit);

  explicit WeightCopies(size_t bytes);  // throws bad_alloc
  ~WeightCopies();
  WeightCopies(const WeightCopies&) = delete;
  WeightCopies& operator=(const WeightCopies&) = delete;

  // Part number `part`, or null where it was not copied, or where `original` begins or ends with other bytes: its file may
  // have been replaced since ONNX Runtime opened it.
  const char* find(size_t part, const char* original) const;
  size_t bytes() const;  // of what was copied

 private:
  struct Copy {
    const char* data;
    size_t bytes;
  };

  void fill(const std::vector<FilePart>& parts);

  char* memory_;
  size_t reserved_, bytes_;
  std::vector<Copy> copies_;  // of the first parts
};

}  // namespace tilegraph
