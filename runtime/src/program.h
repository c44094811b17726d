// A partition made ready to run: expressions, checks and calls as flat tables, and the plan for one set of input shapes.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "library.h"
#include "manifest.h"

namespace tilegraph {

// What a program works out from its inputs' shapes. Kept between runs and used again while the shapes stay the same.
struct Plan {
  struct Step {
    int64_t extent, grain;
    int tasks;               // of the whole extent
    size_t scratch_bytes;  // of one task, a multiple of 64
  };

  struct Rounds {
    int64_t items, step;  // step is at least 1; the extent of each call is a multiple of items, 0 if that is 0
  };

  bool valid = false;
  std::vector<int64_t> input_dims;   // of the inputs that are looked at on each run, one after the other
  std::vector<int64_t> registers;
  std::vector<int64_t> output_dims;  // of all outputs, one after the other
  std::vector<size_t> output_bytes;
  std::vector<int64_t> offsets;      // added to the base pointer of each pointer argument
  std::vector<int64_t> item_bytes;   // likewise taken off it for each item before the round
  std::vector<Step> steps;
  std::vector<Rounds> rounds;        // of those of the program
  std::vector<TVMFFIAny> rows;       // the argument rows of all calls
  size_t arena_bytes = 0;            // a multiple of 64
  size_t scratch_bytes = 0;          // behind the arena; the calls share it
};

class Program {
 public:
  struct Call {
    KernelFunction function;
    std::string symbol;
    std::string name;        // what people call it; may be empty
    uint32_t first_pointer;  // in `sources()` and Plan::offsets
    uint32_t pointers;
    uint32_t sizes;
    size_t row;              // in Plan::rows
    Register extent, grain, scratch;
    int64_t align;

    int32_t count() const { return static_cast<int32_t>(pointers + sizes + 3); }
  };

  // Throws INVALID_GRAPH if the library lacks a symbol. `node` begins every message.
  Program(ProgramSpec spec, std::shared_ptr<Library> library, std::string node, int max_tasks);

  const std::string& node() const { return node_; }
  const std::vector<TensorSpec>& inputs() const { return spec_.inputs; }
  const std::vector<TensorSpec>& outputs() const { return spec_.outputs; }
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<RoundsSpec>& rounds() const { return spec_.rounds; }
  // The base pointer of each pointer argument: an input, then an output, then the arena (the last one).
  const std::vector<uint32_t>& sources() const { return sources_; }
  uint32_t arena_source() const { return static_cast<uint32_t>(spec_.inputs.size() + spec_.outputs.size()); }

  int max_tasks() const { return max_tasks_; }
  // How many tasks a part of `extent` units of a call is split into.
  int tasks(const Call& call, const Plan::Step& step, int64_t extent) const;

  bool has_static_shape(size_t input) const;
  // Constant inputs that calls do little else with than read them, in the order of the calls: as a product of one row does
  // with its matrix. Sizes that a run decides count as 1.
  std::vector<uint32_t> streamed() const;
  Plan new_plan() const;

  // Fills `plan` from plan.input_dims, the dims of the inputs listed in `checked`. Throws INVALID_ARGUMENT that names the
  // input, the dim and both values if the shapes do not fit the program or each other.
  void make_plan(Plan& plan, const std::vector<uint32_t>& checked) const;
  // The same check for an input of a static shape.
  void check_static(size_t input, const std::vector<int64_t>& dims) const;

  [[noreturn]] void refuse(const std::string& what) const;  // INVALID_ARGUMENT

 private:
  [[noreturn]] void refuse_dim(size_t input, size_t dim, int64_t have, int64_t want, const std::string& bound_by) const;
  int64_t size(const Plan& plan, Register at, const char* what) const;
  void check_equal(const Plan& plan) const;
  void bind(Plan& plan, const std::vector<uint32_t>& checked) const;
  void plan_outputs(Plan& plan) const;
  void plan_calls(Plan& plan) const;
  void plan_rounds(Plan& plan) const;

  ProgramSpec spec_;
  std::shared_ptr<Library> library_;
  std::string node_;
  int max_tasks_;
  std::vector<Call> calls_;
  std::vector<uint32_t> sources_;
  std::vector<Register> offset_registers_, item_registers_;
  std::vector<uint8_t> is_arena_;
  Register zero_ = 0;
  size_t row_arguments_ = 0;
};

}  // namespace tilegraph
