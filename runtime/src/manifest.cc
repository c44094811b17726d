#include "manifest.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace tilegraph {
namespace {

using nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr int64_t kAbi = 2;  // kernels of 1 rely on less
constexpr int64_t kArenaAlignment = 64;
constexpr size_t kMaxDepth = 64;               // of the JSON document
constexpr size_t kMaxExpressionDepth = 32;
constexpr size_t kMaxOperands = 256;           // of one operation

// A field of the document. It knows the fields that lead to it, so that every complaint can name it; the path is written
// only then: a manifest of symbolic sizes has some 100,000 fields.
class Field {
 public:
  // `origin` stays where it is as long as this and the fields below.
  Field(const json& value, const std::string& origin) : value_(value), origin_(&origin) {}
  Field(const json& value, std::string&& origin) = delete;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ORT_INVALID_GRAPH,
                cat(path(), ": ", what, "; the manifest is damaged or of another version: run tilegraph optimize again"));
  }
  std::string path() const {
    if (!parent_) return *origin_;
    return key_ ? cat(parent_->path(), ".", key_) : cat(parent_->path(), "[", index_, "]");
  }
  const json& value() const { return value_; }

  Field at(const char* key) const& {
    if (!value_.is_object()) fail("it must be an object");
    auto found = value_.find(key);
    if (found == value_.end()) fail(cat("it has no field '", key, "'"));
    return {*found, this, key, 0};
  }
  Field at(size_t index) const& { return {value_.at(index), this, nullptr, index}; }
  // The field above must stay.
  Field at(const char*) const&& = delete;
  Field at(size_t) const&& = delete;

  size_t list(size_t limit) const {
    if (!value_.is_array()) fail("it must be a list");
    if (value_.size() > limit) fail(cat("it has ", value_.size(), " entries, more than ", limit));
    return value_.size();
  }
  std::string text() const {
    if (!value_.is_string()) fail("it must be a string");
    return value_.get<std::string>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) fail("it must be true or false");
    return value_.get<bool>();
  }
  int64_t integer() const {
    if (value_.is_number_unsigned() && value_.get<uint64_t>() > uint64_t{INT64_MAX}) fail("the integer does not fit 64 bits");
    if (!value_.is_number_integer()) fail("it must be an integer");
    return value_.get<int64_t>();
  }
  int64_t integer(int64_t low, int64_t high) const {
    int64_t v = integer();
    if (v < low || v > high) fail(cat("it is ", v, ", outside ", low, " to ", high));
    return v;
  }

 private:
  Field(const json& value, const Field* parent, const char* key, size_t index)
      : value_(value), parent_(parent), key_(key), index_(index) {}

  const json& value_;
  const std::string* origin_ = nullptr;  // of the whole document
  const Field* parent_ = nullptr;
  const char* key_ = nullptr;
  size_t index_ = 0;
};

json parse_json(std::string_view text, const std::string& origin) {
  static const json nothing;
  const Field whole(nothing, origin);
  if (text.size() > kMaxManifestBytes) whole.fail(cat("it has ", text.size(), " bytes, more than ", kMaxManifestBytes));
  // Depth first: a document of nothing but brackets must not decide how deep this code recurses.
  size_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      else if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) whole.fail(cat("it is nested deeper than ", kMaxDepth));
    } else if (c == ']' || c == '}') {
      if (depth) --depth;
    }
  }
  try {
    return json::parse(text);
  } catch (const json::exception& e) {
    whole.fail(cat("it is not JSON (", e.what(), ")"));
  }
}

Register read_expression(const Field& field, Expressions& expressions, size_t depth = 0) {
  const json& value = field.value();
  if (value.is_number()) return expressions.constant(field.integer());
  if (value.is_string()) {
    std::string name = field.text();
    if (name.empty()) field.fail("a symbol needs a name");
    return expressions.symbol(name);
  }
  size_t count = field.list(kMaxOperands + 1);
  if (depth >= kMaxExpressionDepth) field.fail(cat("the expression is nested deeper than ", kMaxExpressionDepth));
  if (count < 2) field.fail("an operation needs operands");
  std::string name = field.at(size_t{0}).text();
  static const std::pair<const char*, Op> kOps[] = {{"+", Op::kAdd},     {"*", Op::kMultiply}, {"//", Op::kFloorDivide},
                                                    {"%", Op::kModulo}, {"min", Op::kMin},    {"max", Op::kMax}};
  for (auto [text, op] : kOps) {
    if (name != text) continue;
    if ((op == Op::kFloorDivide || op == Op::kModulo) && count != 3) field.fail(cat("'", name, "' needs two operands"));
    Register result = read_expression(field.at(1), expressions, depth + 1);
    for (size_t i = 2; i < count; ++i)
      result = expressions.apply(op, result, read_expression(field.at(i), expressions, depth + 1));
    return result;
  }
  field.fail(cat("unknown operation '", name, "'"));
}

// What overflows in a constant is named by its field, too.
Register read_checked(const Field& field, Expressions& expressions) {
  try {
    return read_expression(field, expressions);
  } catch (const Error& e) {
    if (e.code() == ORT_INVALID_GRAPH) throw;
    field.fail(e.what());
  }
}

// An expression for something that cannot be negative.
Register read_size(const Field& field, Expressions& expressions) {
  Register at = read_checked(field, expressions);
  if (expressions.is_constant(at) && expressions.constant_value(at) < 0)
    field.fail(cat("it is ", expressions.constant_value(at), ", and cannot be negative"));
  return at;
}

std::vector<TensorSpec> read_tensors(const Field& field, Expressions& expressions) {
  std::vector<TensorSpec> tensors;
  size_t count = field.list(kMaxTensors);
  for (size_t i = 0; i < count; ++i) {
    Field item = field.at(i);
    TensorSpec tensor;
    tensor.name = item.at("name").text();
    Field dtype = item.at("dtype");
    auto known = dtype_of(dtype.text());
    if (!known) dtype.fail(cat("unknown element type '", dtype.text(), "'"));
    tensor.dtype = *known;
    Field shape = item.at("shape");
    size_t rank = shape.list(kMaxRank);
    for (size_t d = 0; d < rank; ++d) tensor.shape.push_back(read_size(shape.at(d), expressions));
    tensor.constant = item.at("constant").boolean();
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Slot read_slot(const Field& field, const ProgramSpec& program, Expressions& expressions) {
  size_t parts = field.list(3);
  if (parts < 2) field.fail("a slot is a kind and a place");
  std::string kind = field.at(size_t{0}).text();
  Field place = field.at(1);
  Register none = expressions.constant(0);
  if (kind == "arena")
    return {Slot::Kind::kArena, 0, read_size(place, expressions), parts == 3 ? read_size(field.at(2), expressions) : none};
  if (kind != "input" && kind != "output") field.fail(cat("unknown slot kind '", kind, "'"));
  if (parts == 3) field.fail("only a place in the arena has bytes of an item");
  size_t count = kind == "input" ? program.inputs.size() : program.outputs.size();
  if (count == 0) place.fail(cat("the partition has no ", kind));
  auto index = static_cast<uint32_t>(place.integer(0, static_cast<int64_t>(count) - 1));
  return {kind == "input" ? Slot::Kind::kInput : Slot::Kind::kOutput, index, none, none};
}

KernelCall read_call(const Field& field, const ProgramSpec& program, Expressions& expressions) {
  KernelCall call;
  call.symbol = field.at("symbol").text();
  if (call.symbol.empty() || call.symbol.find('\0') != std::string::npos) field.at("symbol").fail("it is not a symbol");
  if (field.value().contains("name")) call.name = field.at("name").text();
  Field args = field.at("args");
  size_t count = args.list(kMaxArguments);
  for (size_t i = 0; i < count; ++i) call.args.push_back(read_slot(args.at(i), program, expressions));
  Field sizes = field.at("sizes");
  count = sizes.list(kMaxArguments);
  for (size_t i = 0; i < count; ++i) call.sizes.push_back(read_size(sizes.at(i), expressions));
  call.extent = read_size(field.at("extent"), expressions);
  call.grain = read_size(field.at("grain"), expressions);
  call.scratch = read_size(field.at("scratch"), expressions);
  call.align = field.at("align").integer(1, INT64_MAX);
  return call;
}

// From here on `name` stands for the expression.
void define(const Field& field, const std::string& name, Register value, Expressions& expressions) {
  if (name.empty() || !expressions.define(name, value)) field.fail(cat("'", name, "' is no new name for an expression"));
}

// The rounds' expressions; the other ones may name their steps.
void read_rounds(const Field& field, ProgramSpec& program) {
  if (!field.value().contains("rounds")) return;
  Field list = field.at("rounds");
  size_t count = list.list(kMaxCalls);
  for (size_t i = 0; i < count; ++i) {
    Field item = list.at(i);
    RoundsSpec rounds;
    rounds.first = static_cast<size_t>(item.at("first").integer(0, kMaxCalls));
    rounds.calls = static_cast<size_t>(item.at("calls").integer(1, kMaxCalls));
    rounds.items = read_size(item.at("items"), program.expressions);
    rounds.step = read_size(item.at("step"), program.expressions);
    Field name = item.at("name");
    define(name, name.text(), rounds.step, program.expressions);
    program.rounds.push_back(rounds);
  }
}

// Names for expressions that are used more than once; each may use those before it.
void read_named(const Field& field, Expressions& expressions) {
  if (!field.value().contains("named")) return;
  Field list = field.at("named");
  size_t count = list.list(kMaxNamed);
  for (size_t i = 0; i < count; ++i) {
    Field pair = list.at(i);
    if (pair.list(2) != 2) pair.fail("it must be a name and an expression");
    define(pair, pair.at(size_t{0}).text(), read_checked(pair.at(1), expressions), expressions);
  }
}

// Checks what a run relies on: rounds follow each other, and bytes of an item only stand in their calls.
void check_rounds(const Field& field, const ProgramSpec& program) {
  size_t done = 0;
  auto outside = [&](size_t end) {
    for (; done < end; ++done)
      for (const Slot& slot : program.calls[done].args)
        if (!program.expressions.is_constant(slot.item) || program.expressions.constant_value(slot.item) != 0)
          field.fail(cat("call ", done, " has an argument with bytes of an item and is in no rounds"));
  };
  for (const RoundsSpec& rounds : program.rounds) {
    size_t end = rounds.first + rounds.calls;
    if (rounds.first < done || end > program.calls.size())
      field.at("rounds").fail(cat("calls ", rounds.first, " to ", end - 1, " are in rounds before, or do not exist"));
    outside(rounds.first);
    for (; done < end; ++done)
      if (program.calls[done].align != 1)
        field.at("rounds").fail(cat("call ", done, " has an alignment of ", program.calls[done].align, ", and must have 1"));
  }
  outside(program.calls.size());
}

// Every symbol must be bound by an input dim that is nothing but that symbol.
void check_symbols(const ProgramSpec& program, const Field& field) {
  std::vector<bool> bound(program.expressions.registers().size());
  for (const TensorSpec& input : program.inputs)
    for (Register dim : input.shape) bound[dim] = true;
  for (const auto& symbol : program.expressions.symbols())
    if (!bound[symbol.at]) field.fail(cat("the symbol '", symbol.name, "' is not a dim of any input"));
}

}  // namespace

Manifest::Manifest(nlohmann::json&& document, const std::string& origin) : origin_(origin) {
  Field root(document, origin);
  if (int64_t format = root.at("format").integer(); format != kFormat)
    root.at("format").fail(cat("format ", format, " is not the one this runtime reads (", kFormat,
                               "): use the tilegraph version that wrote the folder"));
  if (int64_t abi = root.at("abi").integer(); abi < 1 || abi > kAbi)
    root.at("abi").fail(cat("kernel ABI ", abi, " is not one that this runtime calls (1 to ", kAbi,
                            "): use the tilegraph version that wrote the folder"));
  Field library = root.at("library");
  library_.sha256 = library.at("sha256").text();
  library_.bytes = static_cast<size_t>(library.at("bytes").integer(0, INT64_MAX));
  library_.isa = library.at("isa").text();
  Field features = library.at("features");
  size_t count = features.list(1024);
  for (size_t i = 0; i < count; ++i) library_.features.push_back(features.at(i).text());
  Field partitions = root.at("partitions");
  if (!partitions.value().is_object()) partitions.fail("it must be an object");
  partitions_ = std::make_unique<json>(std::move(document["partitions"]));
}

Manifest::~Manifest() = default;

std::shared_ptr<Manifest> Manifest::parse(std::string_view text, const std::string& origin) {
  return std::make_shared<Manifest>(parse_json(text, origin), origin);
}

bool Manifest::has_program(const std::string& partition) const { return partitions_->contains(partition); }

ProgramSpec Manifest::program(const std::string& partition) const {
  auto found = partitions_->find(partition);
  if (found == partitions_->end())
    throw Error(ORT_INVALID_GRAPH, cat("partition '", partition, "' is not in ", origin_,
                                       "; the model and the manifest are of different runs: run tilegraph optimize again"));
  const std::string origin = cat(origin_, ": partition '", partition, "'");
  Field field(*found, origin);
  ProgramSpec program;
  Expressions& expressions = program.expressions;
  program.inputs = read_tensors(field.at("inputs"), expressions);
  program.outputs = read_tensors(field.at("outputs"), expressions);
  read_rounds(field, program);
  read_named(field, expressions);
  Field arena = field.at("arena");
  program.arena_bytes = read_size(arena.at("bytes"), expressions);
  Field alignment = arena.at("alignment");
  if (alignment.integer() != kArenaAlignment) alignment.fail(cat("only an arena alignment of ", kArenaAlignment, " is served"));
  Field calls = field.at("calls");
  size_t count = calls.list(kMaxCalls);
  for (size_t i = 0; i < count; ++i) program.calls.push_back(read_call(calls.at(i), program, expressions));
  if (field.value().contains("equal")) {
    Field pairs = field.at("equal");
    count = pairs.list(kMaxCalls);
    for (size_t i = 0; i < count; ++i) {
      Field pair = pairs.at(i);
      if (pair.list(2) != 2) pair.fail("it must be two extents");
      program.equal.emplace_back(read_size(pair.at(size_t{0}), expressions), read_size(pair.at(size_t{1}), expressions));
    }
  }
  check_rounds(field, program);
  check_symbols(program, field);
  return program;
}

Notes parse_notes(std::string_view text, const std::string& node) {
  const std::string origin = cat(node, ": attribute notes");
  json document = parse_json(text, origin);
  Field root(document, origin);
  Notes notes;
  if (document.is_object() && document.empty()) {
    notes.empty = true;
    return notes;
  }
  notes.library_sha256 = root.at("library_sha256").text();
  Field manifest = root.at("manifest");
  if (manifest.value().is_object()) {
    notes.manifest = std::make_shared<Manifest>(std::move(document["manifest"]), cat("the manifest embedded in ", node));
  } else {
    notes.manifest_file = manifest.text();
    notes.manifest_sha256 = root.at("manifest_sha256").text();
  }
  return notes;
}

}  // namespace tilegraph
