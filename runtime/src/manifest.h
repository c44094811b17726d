// manifest.json: the contract with the compiler (docs/manifest.md, tilegraph/spec/artifact.py). The file is untrusted.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"
#include "expression.h"
#include "status.h"

namespace tilegraph {

inline constexpr size_t kMaxManifestBytes = size_t{256} << 20;
inline constexpr size_t kMaxRank = 16;
inline constexpr size_t kMaxArguments = 4096;   // of a kernel; sizes are counted apart
inline constexpr size_t kMaxTensors = 1 << 20;  // inputs and outputs of a partition
inline constexpr size_t kMaxCalls = 1'000'000;
inline constexpr size_t kMaxNamed = 1'000'000;  // expressions with a name

struct TensorSpec {
  std::string name;
  ONNXTensorElementDataType dtype;
  std::vector<Register> shape;
  bool constant;
};

struct Slot {
  enum class Kind : uint8_t { kInput, kOutput, kArena } kind;
  uint32_t index;   // input, output
  Register offset;  // arena: bytes
  Register item;    // arena: bytes of an item of which only those of one round exist; 0 if all do
};

struct KernelCall {
  std::string symbol;
  std::string name;  // what people call it; may be empty
  std::vector<Slot> args;
  std::vector<Register> sizes;
  Register extent, grain, scratch;
  int64_t align;
};

// Calls that are done for `step` of their `items` at a time.
struct RoundsSpec {
  size_t first, calls;
  Register items, step;
};

struct ProgramSpec {
  Expressions expressions;
  std::vector<TensorSpec> inputs, outputs;
  Register arena_bytes;
  std::vector<KernelCall> calls;
  std::vector<std::pair<Register, Register>> equal;  // extents that must be equal
  std::vector<RoundsSpec> rounds;                    // in the order of the calls, none in two of them
};

struct LibrarySpec {
  std::string sha256;
  size_t bytes;
  std::string isa;
  std::vector<std::string> features;
};

class Manifest {
 public:
  // `origin` names the manifest in messages. Throws INVALID_GRAPH, naming the field, for anything that is not a manifest
  // of a format and ABI that this runtime serves.
  Manifest(nlohmann::json&& document, const std::string& origin);  // takes the partitions out of it
  static std::shared_ptr<Manifest> parse(std::string_view text, const std::string& origin);
  ~Manifest();

  const LibrarySpec& library() const { return library_; }
  bool has_program(const std::string& partition) const;
  ProgramSpec program(const std::string& partition) const;  // INVALID_GRAPH if there is none or it is malformed

 private:
  std::string origin_;
  LibrarySpec library_;
  std::unique_ptr<nlohmann::json> partitions_;
};

// An EPContext node's `notes`.
struct Notes {
  std::string manifest_file, manifest_sha256;  // a folder's
  std::string library_sha256;
  std::shared_ptr<Manifest> manifest;  // an embedded one
  bool empty = false;                  // "{}": another node of the graph carries the library
};
Notes parse_notes(std::string_view text, const std::string& node);

}  // namespace tilegraph
